"""Pages without a browser: what they show, the commands that they name, errors as sentences."""

import html
import json
import shlex

import pytest

from equipoise.cli import main
from equipoise.studio import forms
from equipoise.utils.errors import UsageError


def test_the_data_page_lists_tables_but_no_runs(client, folder):
    (folder / "sites").mkdir()
    for site in ("a", "b"):
        (folder / "sites" / f"{site}.csv").write_text("x,y\n1,2\n")
    (folder / "runs" / "old").mkdir()
    (folder / "runs" / "old" / "clients.csv").write_text("x\n1\n")
    page = client.get("/data").text
    for shown in ("clinics.csv", ">sites<", "sites/a.csv"):
        assert shown in page
    assert "old/clients.csv" not in page


def test_a_table_is_described_as_the_command_describes_it(client, folder):
    query = {"path": "clinics.csv", "client_column": "clinic", "target": "ill"}
    page = client.get("/data/table", params=query).text
    assert "Nothing is in the way" in page
    assert "north" in page
    assert "<svg" in page
    command = page.split("<pre tabindex=")[1].split(">", 1)[1].split("</pre>")[0]
    assert command.startswith("equipoise data describe --json --task tables")


def test_a_mistake_in_the_target_is_a_problem_on_the_page(client):
    query = {"path": "clinics.csv", "client_column": "clinic", "target": "il"}
    page = client.get("/data/table", params=query).text
    assert "problem" in page
    assert "did you mean &#39;ill&#39;?" in page
    assert "Nothing is in the way" not in page


def test_options_that_solve_the_problems_are_filled_in(client, folder):
    counts = {"a": 30, "b": 30, "c": 3}
    rows = [f"{site},{k * k % 17}.5,{k % 2}" for site in counts for k in range(counts[site])]
    (folder / "small.csv").write_text("\n".join(["clinic,age,ill", *rows]) + "\n")
    query = {"path": "small.csv", "client_column": "clinic", "target": "ill"}
    page = client.get("/data/table", params=query).text
    assert "1 problem to solve first" in page
    link = html.unescape(page.split('class="button" href="')[1].split('"')[0])
    assert "option.small_clients=pool" in link
    form = client.get(link).text
    assert '<option value="pool" selected>pool</option>' in form
    assert "set for these data: small clients pool" in form


def test_advice_is_what_the_suggested_command_adds():
    command = 'equipoise compare --data x.csv --target "a b" --target-type regression --metric auc'
    advice = {"option.target_type": "regression", "option.metric": "auc"}
    assert forms.advised_options(command) == advice
    assert forms.advised_options("equipoise compare --data x.csv") == {}
    assert forms.advised_options("") is None


def test_a_damaged_file_is_a_sentence(client, folder):
    (folder / "broken.parquet").write_bytes(b"PAR1 nothing")
    answer = client.get("/data/table", params={"path": "broken.parquet"})
    assert answer.status_code == 404
    assert "cannot be read" in answer.text


FORM = {"path": "clinics.csv", "target": "ill", "client_column": "clinic", "effort": "quick"}


def test_the_form_shows_the_command_that_it_starts(client, folder):
    data = {**FORM, "methods": "fedavg,local", "name": "my first", "option.lr": "0.1"}
    words = shlex.split(client.post("/new/command", data=data).text)
    assert words[:2] == ["equipoise", "compare"]
    assert words[-2:] == ["--out", str(folder / "runs" / "my-first")]
    assert "--lr=0.1" in words
    assert "--epochs=1" not in words  # the default
    mistake = client.post("/new/command", data={**data, "methods": "fedavgg"}).text
    assert "did you mean 'fedavg'" in mistake


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": " "}, "choose what to predict"),
        ({"client_column": ""}, "choose the column that names the sites"),
        ({"methods": "nothing"}, "there is no method"),
        ({"path": "nowhere.csv"}, "does not exist"),
    ],
)
def test_an_incomplete_form_starts_nothing(client, folder, change, message):
    answer = client.post("/new", data={**FORM, **change}, headers={"hx-request": "true"})
    assert message in answer.text
    assert not (folder / "runs" / ".studio").exists()


def test_the_form_has_every_shared_option_with_its_bounds():
    fields = {field.name: field for group in forms.option_groups().values() for field in group}
    assert fields["batch_size"].low == "1"
    assert fields["small_clients"].choices == ("refuse", "drop", "pool", "keep")
    assert fields["lr"].kind == "text"  # a number or a schedule
    assert not forms.ASKED_ABOVE & set(fields)


def test_arguments_of_a_folder_need_no_site_column(tmp_path):
    form = {"target": "ill", "client_column": "clinic"}
    words = forms.comparison_arguments(form, tmp_path, tmp_path / "out")
    assert "--client-column" not in words
    with pytest.raises(UsageError, match="what to predict"):
        forms.comparison_arguments({}, tmp_path, tmp_path / "out")


@pytest.fixture
def finished(folder, monkeypatch):
    """A finished run in the folder of runs."""
    monkeypatch.chdir(folder)
    data = ["--task", "tables", "--data", "clinics.csv", "--client-column", "clinic"]
    options = ["--target", "ill", "--rounds", "2", "--out", "runs/first", "--quiet"]
    assert main(["run", *data, *options]) == 0
    return folder / "runs" / "first"


def test_a_run_can_be_seen_predicted_with_and_deleted(client, folder, finished):
    assert ">first<" in client.get("/runs").text
    page = client.get("/runs/first").text
    assert "finished" in page
    progress = json.loads(page.split('id="progress">')[1].split("</script>")[0])
    assert progress["fraction"] == 1
    assert len(progress["curves"][0]["personal"]) == 2
    report = client.get("/runs/first/report")
    assert report.status_code == 200
    assert report.headers["content-security-policy"].startswith("sandbox")

    form = {"run": "first", "path": "clinics.csv", "client": "south"}
    shown = client.post("/predict", data=form).text
    assert "60 predictions" in shown
    file = shown.split('href="/predictions/')[1].split('"')[0]
    assert client.get(f"/predictions/{file}").text.count("\n") == 61
    mistake = client.post("/predict", data={**form, "client": "soth"}).text
    assert "has no client &#39;soth&#39;" in mistake

    headers = {"hx-request": "true"}
    refused = client.post("/runs/first/delete", data={"confirm": "no"}, headers=headers)
    assert "to confirm" in refused.text
    assert finished.is_dir()
    done = client.post("/runs/first/delete", data={"confirm": "first"}, headers=headers)
    assert done.headers["hx-redirect"] == "/runs"
    assert not finished.exists()
    assert client.get("/runs/first").status_code == 404


def test_events_end_with_the_run(client, finished):
    with client.stream("GET", "/runs/first/events") as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert len(lines) == 1
    assert json.loads(lines[0].removeprefix("data: "))["state"] == "finished"
