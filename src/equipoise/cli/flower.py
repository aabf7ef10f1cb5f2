"""``equipoise flower``: write, start and check a deployment on real machines with Flower."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from equipoise.cli.json_output import add_json, print_json
from equipoise.cli.options import add_options, asks_for_help, early_options, given_options
from equipoise.cli.parser import Parser, add_config, run_subcommand
from equipoise.flower.config import DeploymentConfig
from equipoise.methods import find_method
from equipoise.settings.option_registry import of_config, options
from equipoise.tasks import find_task
from equipoise.utils.errors import UsageError, install_hint

DEFAULT_LISTEN = "127.0.0.1:9443"
DEFAULT_POLL = 0.5  # seconds
DEPLOYED_TASK = "remote-tables"
"""Task of data at clients, whose options ``--help`` shows if no task is named."""


def flower(arguments: list[str]) -> int:
    """Run one of the subcommands of ``equipoise flower``.

    Args:
        arguments: Subcommand and its options.

    Returns:
        The exit code.
    """
    about = "Deploy on Flower: the same methods on real machines. See docs/how-to/deploy.md."
    subcommands = {
        "init": _init,
        "run": _run,
        "node": _node,
        "certs": _certs,
        "register": _register,
        "proxy": _proxy,
        "doctor": _doctor,
        "dry-run": _dry_run,
        "rehearse": _rehearse,
    }
    return run_subcommand("flower", about, subcommands, arguments)


def needs_flower() -> None:
    """Raise ``UsageError`` if Flower is not installed.

    Raises:
        UsageError: If Flower is not installed.
    """
    if importlib.util.find_spec("flwr") is None:
        raise UsageError(
            f"this needs Flower in an environment of its own: {install_hint('flower')}"
        )


def _init(arguments: list[str]) -> int:
    """Write a Flower app for a run."""
    early = early_options(arguments, data_task=DEPLOYED_TASK)
    if asks_for_help(arguments) and not any(text.startswith("--task") for text in arguments):
        early["task"] = DEPLOYED_TASK
    table = options(find_method(early["method"]), find_task(early["task"]))
    deployment = {item.name: item for item in of_config(DeploymentConfig, "deployment")}
    table = deployment | {
        name: item for name, item in table.items() if name not in ("executor", "checkpoint_every")
    }
    parser = Parser("flower init", "Write a ready Flower app.")
    parser.add_argument("folder", help="folder to be made")
    add_config(parser)
    add_json(parser)
    add_options(parser, table, early, arguments, shown_owners=("deployment", "task"))
    values = vars(parser.parse(arguments))
    from equipoise.flower import project

    folder = Path(values["folder"])
    project.write_app(folder, given_options(early, values, table))
    if values["json"]:
        print_json(folder=str(folder))
        return 0
    print(
        f"wrote {folder}: start a SuperLink and SuperNodes (docs/how-to/deploy.md), "
        f"then: equipoise flower run {folder} --ca certs/ca.pem (no --ca if it runs --insecure)"
    )
    return 0


def _run(arguments: list[str]) -> int:
    """Start an app on a SuperLink or in Flower's simulation."""
    parser = Parser("flower run", "Start an app on a SuperLink, or resume it.")
    parser.add_argument("folder", help="the app's folder")
    parser.add_argument(
        "--superlink", default="127.0.0.1:8000", help="host:port (default: 127.0.0.1:8000)"
    )
    parser.add_argument(
        "--ca", help="the CA's certificate (ca.pem); without it the connection is not encrypted"
    )
    parser.add_argument(
        "--simulation",
        action="store_true",
        help="on Flower's simulation runtime, without a SuperLink",
    )
    values = parser.parse(arguments)
    needs_flower()
    from equipoise.flower import launch

    if values.simulation:
        return launch.simulate_app(Path(values.folder))
    return launch.run_app(
        Path(values.folder), values.superlink, Path(values.ca) if values.ca else None
    )


def _node(arguments: list[str]) -> int:
    """Start a SuperNode that answers sooner than Flower's own command."""
    about = (
        "Start a SuperNode, with all options of 'flower-supernode' (see its --help) and the same "
        "answers. Rounds are shorter: processes have PyTorch imported before a message comes."
    )
    parser = Parser("flower node", about)
    parser.add_argument(
        "--poll",
        type=float,
        default=DEFAULT_POLL,
        help="seconds between two looks for a message of the SuperLink (default: "
        f"{DEFAULT_POLL:g}; 'flower-supernode' has 3). Raise it with hundreds of nodes",
    )
    values, rest = parser.parse_known_args(arguments)
    needs_flower()
    from equipoise.flower.supernode import run_supernode

    return run_supernode(rest, values.poll)


def _certs(arguments: list[str]) -> int:
    """Make a private CA, the server's certificate and node keys."""
    about = "Make a private CA, the server's certificate and node keys."
    parser = Parser("flower certs", about)
    parser.add_argument(
        "folder",
        help="folder to be made; ca.key and the other private keys are for their owners alone",
    )
    parser.add_argument(
        "--host",
        action="append",
        required=True,
        help="name or address of the server; may be repeated",
    )
    parser.add_argument(
        "--nodes", type=int, default=0, help="node keys to make, for clients 0, 1, ... (default: 0)"
    )
    parser.add_argument(
        "--days", type=int, default=365, help="days that certificates are valid (default: 365)"
    )
    add_json(parser)
    values = parser.parse(arguments)
    needs_flower()
    from equipoise.flower import certificates

    lines = certificates.write_certificates(
        Path(values.folder), values.host, values.nodes, values.days
    )
    if values.json:
        print_json(folder=values.folder, notes=list(lines))
    else:
        print("\n".join(lines))
    return 0


def _register(arguments: list[str]) -> int:
    """Register a node's public key for a client."""
    about = "Register a node's public key, and the client that its node may be."
    parser = Parser("flower register", about)
    parser.add_argument("key", help="the public key, such as certs/node-0.pub")
    parser.add_argument("--client", type=int, required=True, help="the client's number: 0, 1, ...")
    parser.add_argument(
        "--nodes", default="nodes.json", help="file that is added to (default: nodes.json)"
    )
    parser.add_argument(
        "--superlink", default="127.0.0.1:8000", help="host:port (default: 127.0.0.1:8000)"
    )
    parser.add_argument("--ca", help="the CA's certificate (ca.pem)")
    add_json(parser)
    values = parser.parse(arguments)
    needs_flower()
    from equipoise.flower import audit

    file = Path(values.nodes).resolve()
    ca = Path(values.ca) if values.ca else None
    node = audit.register_node(Path(values.key), values.client, file, values.superlink, ca)
    if values.json:
        print_json(node=node, client=values.client, nodes=str(file))
        return 0
    print(
        f"node {node} is client {values.client}; "
        f"then: equipoise flower init ... --nodes {file}, and give 'flower run' the same --ca"
    )
    return 0


def _proxy(arguments: list[str]) -> int:
    """Write an nginx configuration in front of a SuperLink."""
    about = "Write an nginx configuration that lets nodes in and keeps the control API closed."
    parser = Parser("flower proxy", about)
    parser.add_argument("folder", help="folder for nginx.conf and nginx's own files")
    parser.add_argument("--certs", required=True, help="folder made by 'equipoise flower certs'")
    parser.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        help="address:port where nodes connect: that of this machine, or 0.0.0.0:9443 for all of "
        f"its addresses (default: {DEFAULT_LISTEN}, which only this machine reaches)",
    )
    parser.add_argument(
        "--superlink", default="127.0.0.1:8000", help="host:port (default: 127.0.0.1:8000)"
    )
    add_json(parser)
    values = parser.parse(arguments)
    needs_flower()
    from equipoise.flower import proxy

    file = proxy.write_nginx_config(
        Path(values.folder), values.listen, values.superlink, Path(values.certs)
    )
    if values.json:
        print_json(file=str(file.resolve()), listen=values.listen)
        return 0
    print(f"start it with: nginx -c {file.resolve()} (it listens on {values.listen})")
    return 0


def _doctor(arguments: list[str]) -> int:
    """Check this machine and a SuperLink; return 1 if something is wrong."""
    about = (
        "Check this machine and a SuperLink; says what to do. Exit code 1 if something is wrong."
    )
    parser = Parser("flower doctor", about)
    parser.add_argument(
        "--superlink", default="127.0.0.1:8000", help="host:port (default: 127.0.0.1:8000)"
    )
    parser.add_argument("--certs", help="folder with ca.pem, server.pem and keys")
    add_json(parser)
    values = parser.parse(arguments)
    from equipoise.flower import doctor

    findings = doctor.run_checks(values.superlink, Path(values.certs) if values.certs else None)
    is_wrong = any(finding.verdict == "wrong" for finding in findings)
    if values.json:
        findings_json = [{"verdict": finding.verdict, "text": finding.text} for finding in findings]
        print_json(findings=findings_json)
        return int(is_wrong)
    for finding in findings:
        print(
            f"{finding.verdict:<5} {finding.text}",
            file=sys.stderr if finding.verdict == "wrong" else sys.stdout,
        )
    return int(is_wrong)


def _dry_run(arguments: list[str]) -> int:
    """Print what would leave a node."""
    about = (
        "Print exactly what would leave a node in a run: no server is contacted, and nothing is "
        "kept."
    )
    parser = Parser("flower dry-run", about)
    parser.add_argument("folder", help="the app's folder, as the server's operator sent it")
    parser.add_argument("--data", default="", help="the node's data folder")
    parser.add_argument("--client", type=int, default=0, help="the client's number (default: 0)")
    parser.add_argument("--rules", help="the node's egress rules (node.toml)")
    add_json(parser)
    values = parser.parse(arguments)
    from equipoise.flower.dry_run import describe_egress
    from equipoise.flower.egress import NO_RULES, EgressRules

    rules = EgressRules.load(Path(values.rules)) if values.rules else NO_RULES
    lines = describe_egress(Path(values.folder), values.client, values.data, rules)
    if values.json:
        print_json(client=values.client, leaves=list(lines))
        return 0
    for line in lines:
        print(line)
    return 0


def _rehearse(arguments: list[str]) -> int:
    """Rehearse a deployment with accidents on this machine; return 1 if one was not survived."""
    about = (
        "Start a server, a proxy and nodes on this machine, and see what a run survives: delay and "
        "loss, a partition, a killed node, a killed server app, a killed SuperLink. Nodes have "
        "network namespaces where this user may make them. Everything is ended afterwards. Exit "
        "code 1 if something was not survived."
    )
    parser = Parser("flower rehearse", about)
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes (default: 3)")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="when it is given up (default: 10)"
    )
    parser.add_argument(
        "--out", default="", help="folder for logs and the run (default: a temporary one)"
    )
    add_json(parser)
    values = parser.parse(arguments)
    from equipoise.flower.rehearsal import RehearsalConfig, rehearse

    config = RehearsalConfig(values.nodes, values.minutes, values.out)
    config.check()
    needs_flower()
    progress = sys.stderr if values.json else sys.stdout
    accidents = rehearse(config, lambda line: print(line, flush=True, file=progress))
    if values.json:
        print_json(accidents=list(accidents))
    return int(not all(accident.survived for accident in accidents))
