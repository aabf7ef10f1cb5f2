"""The studio answers to its own pages in one browser on this machine, and to nobody else."""

import pytest

from equipoise.studio import app as studio_app
from equipoise.studio.security import COOKIE

CHANGES = [
    ("POST", "/new"),
    ("POST", "/predict"),
    ("POST", "/runs/x/stop"),
    ("POST", "/runs/x/resume"),
    ("POST", "/runs/x/delete"),
    ("PUT", "/upload?name=a.csv&group=g"),
]


@pytest.mark.parametrize("path", ["/", "/data", "/runs", "/new", "/predict", "/static/studio.js"])
def test_without_the_key_nothing_is_shown(stranger, path):
    assert stranger.get(path).status_code == 403
    assert stranger.get("/", params={"token": "wrong"}).status_code == 403


def test_the_printed_address_opens_a_session_of_this_browser(stranger, secrets):
    opened = stranger.get("/", params={"token": secrets.token})
    assert (opened.status_code, opened.headers["location"]) == (303, "/data")
    cookie = opened.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}={secrets.session};")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert stranger.get("/data").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example:1"])
def test_another_host_name_is_refused(client, host):
    """A page of another site whose name was bound to 127.0.0.1 (DNS rebinding)."""
    assert client.get("/data", headers={"host": host}).status_code == 400


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_change_needs_origin_and_csrf_token(client, method, path):
    for wrong in ({"origin": "http://evil.example"}, {"origin": ""}, {"x-csrf-token": "wrong"}):
        assert client.request(method, path, headers=wrong).status_code == 403, wrong
    assert client.request(method, path).status_code != 403


@pytest.mark.parametrize("path", ["/data", "/runs", "/new", "/predict", "/runs/none"])
def test_pages_forbid_inline_scripts_and_other_sites(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../etc/passwd", "..", "nowhere.csv", "a\0b", "runs/../../x", ""]
)
def test_paths_outside_of_the_folders_are_refused(client, path):
    answer = client.get("/data/table", params={"path": path})
    assert answer.status_code == 404
    assert "root:" not in answer.text


def test_a_link_to_the_outside_is_refused(client, folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret.csv"
    outside.write_text("a,b\n1,2\n")
    (folder / "link.csv").symlink_to(outside)
    assert client.get("/data/table", params={"path": "link.csv"}).status_code == 404


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..%2fetc", ".studio", "."])
def test_names_of_runs_stay_below_the_folder_of_runs(client, folder, name):
    (folder / "precious").mkdir()
    client.post(f"/runs/{name}/delete", data={"confirm": name})
    assert (folder / "precious").is_dir()
    assert (folder / "runs").is_dir()
    assert (folder / "clinics.csv").is_file()


def test_hostile_names_and_cells_are_text(client, folder):
    evil = "<script>alert(1)</script>"
    rows = "".join(f'"{evil}",{age},{age % 2}\n' for age in range(40))
    (folder / "evil.csv").write_text(f'"site{evil}","{evil}",ill\n{rows}')
    (folder / "runs" / "<img src=x onerror=alert(1)>").mkdir()
    page = client.get("/data/table", params={"path": "evil.csv"}).text
    assert "&lt;script&gt;" in page
    assert evil not in page
    assert "<img" not in client.get("/runs").text


def test_an_upload_is_stored_under_a_plain_name(client, folder):
    query = {"name": "../../evil.csv", "group": "g1"}
    answer = client.put("/upload", params=query, content=b"a,b\n1,2\n").json()
    assert answer["path"] == str(folder / "runs/.studio/uploads/g1/evil.csv")
    assert not (folder.parent / "evil.csv").exists()


@pytest.mark.parametrize("name", ["", "x.exe", ".csv", "a.py", "a\0.csv"])
def test_what_is_no_table_is_not_uploaded(client, name):
    answer = client.put("/upload", params={"name": name, "group": "g"}, content=b"x")
    assert answer.status_code == 400
    assert answer.json()["problem"]


def test_an_upload_that_is_too_large_leaves_nothing(client, folder, monkeypatch):
    monkeypatch.setattr(studio_app, "MAX_UPLOAD_BYTES", 10)
    answer = client.put("/upload", params={"name": "a.csv", "group": "g"}, content=b"x" * 11)
    assert "larger than" in answer.json()["problem"]
    assert [path for path in (folder / "runs").rglob("*") if path.is_file()] == []
