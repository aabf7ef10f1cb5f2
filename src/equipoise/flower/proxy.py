"""The nginx configuration that lets nodes in and keeps everybody away from the control API.

In this version of Flower, whoever reaches the SuperLink's port can register keys and start code on
every node. So the SuperLink listens on loopback, and other machines reach this proxy, which passes
the paths of the fleet API and nothing else.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.flower.project import is_port, parse_address
from equipoise.utils import io
from equipoise.utils.errors import UsageError

MAX_BODY_MEGABYTES = 32  # Flower sends arrays in chunks of 5
NGINX = """\
# nginx -c {here}/nginx.conf   (made by: equipoise flower proxy)
pid {here}/nginx.pid;
error_log {here}/nginx-error.log;
events {{}}
http {{
  access_log {here}/nginx-access.log;
  limit_req_zone $binary_remote_addr zone=nodes:10m rate=100r/s;
  client_body_temp_path {here}/nginx-body;
  proxy_temp_path {here}/nginx-proxy;
  fastcgi_temp_path {here}/nginx-fastcgi;
  uwsgi_temp_path {here}/nginx-uwsgi;
  scgi_temp_path {here}/nginx-scgi;
  server {{
    listen {listen} ssl;
    ssl_certificate {certs}/server.pem;
    ssl_certificate_key {certs}/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size {body}m;
    limit_req zone=nodes burst=1000 nodelay;
    location /v1/fleet/ {{
      # nginx compares the path after it resolved ../ and %2e, but passes on the path as it came.
      if ($request_uri !~ "^/v1/fleet/[A-Za-z0-9_/-]*$") {{ return 403; }}
      if ($request_uri ~ "//") {{ return 403; }}
      proxy_pass https://{superlink};
      proxy_ssl_trusted_certificate {certs}/ca.pem;
      proxy_ssl_verify on;
      proxy_ssl_name {name};
      proxy_http_version 1.1;
      proxy_set_header Host $host;
      proxy_set_header Connection "";
      proxy_read_timeout 300s;
      proxy_request_buffering off;
    }}
    location / {{ return 403; }}
  }}
}}
"""


def write_nginx_config(folder: Path, listen: str, superlink: str, certs: Path) -> Path:
    """Write ``nginx.conf``.

    Args:
        folder: Folder of the file; nginx keeps its other files there too.
        listen: Port, or address with port, where nodes connect.
        superlink: Address of the SuperLink.
        certs: Folder of ``equipoise flower certs``.

    Returns:
        The file.

    Raises:
        UsageError: If an address is wrong, or a file is missing.
    """
    parse_address(superlink, "superlink")
    if not is_port(listen):
        parse_address(listen, "listen")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"'{folder}' is a file: choose another folder")
    if not (certs / "server.pem").is_file():
        raise UsageError(f"'{certs}' has no server.pem: make it with 'equipoise flower certs'")
    io.make_folder(folder)
    file = folder / "nginx.conf"
    text = NGINX.format(
        here=folder.resolve(),
        listen=listen,
        superlink=superlink,
        certs=certs.resolve(),
        name=_certificate_name(certs),
        body=MAX_BODY_MEGABYTES,
    )
    io.write_text(file, text)
    return file


def _certificate_name(certs: Path) -> str:
    """Return a name in the SuperLink's certificate: nginx compares names, and never addresses."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate((certs / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = names.get_values_for_type(x509.DNSName)
    if known:
        return known[0]
    # Without any name, nginx reads the subject's.
    return str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
