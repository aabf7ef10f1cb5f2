"""The pages of the studio: Data, Run, Compare, Predict and Runs."""

from __future__ import annotations

import asyncio
import csv
import json
import math
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from urllib.parse import parse_qs, urlencode

import plotly
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from equipoise import __version__
from equipoise.experiment.decision import read_decision
from equipoise.records.decision import Estimate
from equipoise.records.run_dir import ComparisonFolder
from equipoise.studio import forms, tables_view
from equipoise.studio.commands import CommandResult, run_command
from equipoise.studio.jobs import JobStore
from equipoise.studio.paths import TABLE_SUFFIXES, StudioPaths
from equipoise.studio.run_library import CellProgress, RunLibrary
from equipoise.studio.security import REPORT_POLICY, Guard, Secrets
from equipoise.studio.shared_files import shared_with_report
from equipoise.utils.errors import UsageError

MAX_UPLOAD_BYTES = 2**30
EVENT_SECONDS = 0.5  # between two looks at a run
PREVIEW_LINES = 20  # of predictions
Page = Callable[[Request], Awaitable[Response]]


class Studio:
    """The state behind the pages: folders, jobs and templates. Runs themselves are folders."""

    def __init__(self, paths: StudioPaths, secrets: Secrets) -> None:
        """Create the studio.

        Args:
            paths: Directories that it may use.
            secrets: Secrets of this start.
        """
        self.paths = paths
        self.secrets = secrets
        self.jobs = JobStore(paths.state / "jobs")
        self.library = RunLibrary(paths.runs, self.jobs)
        loader = ChoiceLoader(
            [
                PackageLoader("equipoise.studio", "templates"),
                PackageLoader("equipoise.report", "templates"),
            ]
        )
        self.templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)

    def render(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """Return a page."""
        page = self.templates.get_template(template).render(
            csrf=self.secrets.csrf, version=__version__, **values
        )
        return HTMLResponse(page, status)

    @property
    def folder(self) -> Path:
        """The folder in which commands run."""
        return self.paths.data[0]

    # ---------------------------------------------------------------- data

    async def data(self, request: Request) -> Response:
        """List the tables that can be used, and take dropped files."""
        tables = await run_in_threadpool(self.paths.tables)
        shown = [(path, _display_path(path, self.folder)) for path in tables]
        return self.render("data.html.j2", tables=shown, max_gib=MAX_UPLOAD_BYTES / 2**30)

    async def table(self, request: Request) -> Response:
        """Show one table, what its columns become, and its problems."""
        query = request.query_params
        path = self.paths.data_path(query.get("path", ""))
        preview = await run_in_threadpool(tables_view.preview, path)
        site = query.get("client_column", "")
        if not site and preview.site_columns:
            site = preview.site_columns[0]
        target = query.get("target", "")
        values: dict[str, object] = {
            "path": str(path),
            "name": path.name,
            "preview": preview,
            "client_column": site,
            "target": target,
            "description": None,
            "histograms": {},
            "command": "",
            "next": "",
        }
        if site or preview.is_folder:
            result = await self._describe(path, site, target)
            description = result.json()
            values["description"] = description
            values["command"] = result.command
            values["histograms"] = await run_in_threadpool(tables_view.histograms, path, site)
            chosen = {"path": str(path), "client_column": site, "target": target}
            advice = forms.advised_options(str(description.get("command", "")))
            if advice is not None:
                values["next"] = f"/new?{urlencode(chosen | advice)}"
        return self.render("table.html.j2", 200, **values)

    async def _describe(self, path: Path, site: str, target: str) -> CommandResult:
        arguments = ["data", "describe", "--json", "--task", "tables", "--data", str(path)]
        if site and path.is_file():
            arguments += ["--client-column", site]
        if target:
            arguments += ["--target", target]
        return await run_command(arguments, self.folder)

    async def upload(self, request: Request) -> Response:
        """Store a dropped file; files that are dropped together go to one folder.

        Args:
            request: The request, with the file.

        Returns:
            The response.

        Raises:
            UsageError: If the file is no table.
        """
        name = Path(request.query_params.get("name", "")).name
        group = "".join(c for c in request.query_params.get("group", "") if c.isalnum())[:40]
        if not name or name.startswith(".") or "\0" in name or not group:
            raise UsageError("the file has no usable name")
        if Path(name).suffix.lower() not in TABLE_SUFFIXES:
            raise UsageError(f"'{name}' is no table: drop {', '.join(TABLE_SUFFIXES)} files")
        folder = self.paths.uploads / group
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{name}.part"
        try:
            await self._receive(request, part)
            os.replace(part, folder / name)
        finally:
            part.unlink(missing_ok=True)
        return JSONResponse({"path": str(folder / name), "folder": str(folder)})

    async def _receive(self, request: Request, part: Path) -> None:
        """Write the body of a request to a file."""
        size = 0
        with open(part, "wb") as file:
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_UPLOAD_BYTES:
                    raise UsageError(
                        f"the file is larger than {MAX_UPLOAD_BYTES / 2**30:g} GiB: copy it into "
                        f"'{self.folder}' and choose it from the list"
                    )
                file.write(chunk)

    # ---------------------------------------------------------------- run

    async def new(self, request: Request) -> Response:
        """Ask three questions; everything else is folded away, filled in as the link says."""
        query = request.query_params
        path = query.get("path", "")
        columns: tuple[str, ...] = ()
        sites: tuple[str, ...] = ()
        if path:
            preview = await run_in_threadpool(tables_view.preview, self.paths.data_path(path))
            columns = preview.columns
            sites = preview.columns if not preview.is_folder else ()
        return self.render(
            "new.html.j2",
            tables=[
                (table, _display_path(table, self.folder))
                for table in await run_in_threadpool(self.paths.tables)
            ],
            path=path,
            columns=columns,
            sites=sites,
            client_column=query.get("client_column", ""),
            target=query.get("target", ""),
            efforts=forms.EFFORTS,
            families=await run_in_threadpool(forms.method_families),
            default_methods=forms.default_methods(),
            groups=await run_in_threadpool(forms.option_groups),
            advised={
                name.removeprefix("option."): value
                for name, value in query.items()
                if name.startswith("option.")
            },
        )

    async def command(self, request: Request) -> Response:
        """Show the command of a form as it is filled in now."""
        form = await _form(request)
        try:
            data = self.paths.data_path(form.get("path", ""))
            out = self.paths.new_run_folder(form.get("name", "") or data.stem)
            text = _command_text(forms.comparison_arguments(form, data, out))
        except UsageError as error:
            text = str(error)
        return PlainTextResponse(text)

    async def start(self, request: Request) -> Response:
        """Start the command of a form."""
        form = await _form(request)
        data = self.paths.data_path(form.get("path", ""))
        out = self.paths.new_run_folder(form.get("name", "") or data.stem)
        arguments = forms.comparison_arguments(form, data, out)
        job = await run_in_threadpool(self.jobs.start, arguments, out, self.folder)
        return _redirect(f"/runs/{Path(job.out).name}")

    # ---------------------------------------------------------------- runs

    async def runs(self, request: Request) -> Response:
        """List all runs and comparisons."""
        entries = await run_in_threadpool(self.library.entries)
        return self.render("runs.html.j2", entries=entries, folder=str(self.paths.runs))

    async def run(self, request: Request) -> Response:
        """Show one run or comparison: progress, curves, and what can be done with it.

        Args:
            request: The request, with the folder of the run.

        Returns:
            The page.

        Raises:
            UsageError: If the folder holds no run.
        """
        folder = self._folder_of(request)
        entry = await run_in_threadpool(self.library.entry, folder)
        if entry is None:
            raise UsageError(f"'{folder.name}' holds no run")
        job = self.jobs.latest(folder)
        return self.render(
            "run.html.j2",
            entry=entry,
            command=job.command if job else f"equipoise report {folder}",
            output=self.jobs.output(job) if job else "",
            progress=_progress(self.library.cells(folder)),
            has_agents=_has_agents(folder),
        )

    async def events(self, request: Request) -> Response:
        """Stream the progress of a run as server-sent events until it ends."""
        folder = self._folder_of(request)
        headers = {"X-Accel-Buffering": "no"}
        stream = self._event_stream(request, folder)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _event_stream(self, request: Request, folder: Path) -> AsyncIterator[str]:
        """Yield the progress of a run as server-sent events, whenever it changes."""
        previous = ""
        while not await request.is_disconnected():
            entry = await run_in_threadpool(self.library.entry, folder)
            cells = await run_in_threadpool(self.library.cells, folder)
            job = self.jobs.latest(folder)
            state = entry.state if entry else "deleted"
            event = {
                **_progress(cells),
                "state": state,
                "output": self.jobs.output(job)[-4000:] if job else "",
            }
            text = json.dumps(event)
            if text != previous:
                yield f"data: {text}\n\n"
                previous = text
            if state != "running":
                return
            await asyncio.sleep(EVENT_SECONDS)

    async def stop(self, request: Request) -> Response:
        """Ask a running command to stop after its round.

        Args:
            request: The request, with the folder of the run.

        Returns:
            The response.

        Raises:
            UsageError: If the run is not running, or was not started by this studio.
        """
        folder = self._folder_of(request)
        job = self.jobs.latest(folder)
        if job is None or not job.is_running:
            raise UsageError(f"'{folder.name}' is not running, or was not started by this studio")
        await run_in_threadpool(self.jobs.stop, job)
        return _redirect(f"/runs/{folder.name}")

    async def resume(self, request: Request) -> Response:
        """Continue a run or comparison that was stopped."""
        folder = self._folder_of(request)
        arguments = ["resume", str(folder)]
        await run_in_threadpool(self.jobs.start, arguments, folder, self.folder)
        return _redirect(f"/runs/{folder.name}")

    async def delete(self, request: Request) -> Response:
        """Delete a run; the form repeats its name as confirmation.

        Args:
            request: The request, with the folder of the run and its repeated name.

        Returns:
            The response.

        Raises:
            UsageError: If the name differs or the run is running.
        """
        folder = self._folder_of(request)
        form = await _form(request)
        if form.get("confirm", "").strip() != folder.name:
            raise UsageError(f"type '{folder.name}' to confirm that it is deleted for good")
        job = self.jobs.latest(folder)
        if job is not None and job.is_running:
            raise UsageError(f"'{folder.name}' is running: stop it first")
        await run_in_threadpool(shutil.rmtree, folder)
        self.jobs.forget(folder)
        return _redirect("/runs")

    async def report(self, request: Request) -> Response:
        """Return the report of a run; it is written first if it is missing.

        Args:
            request: The request, with the folder of the run.

        Returns:
            The page.

        Raises:
            UsageError: If the report cannot be written.
        """
        folder = self._folder_of(request)
        page = folder / "report.html"
        if not page.is_file():
            result = await run_command(["report", str(folder)], self.folder)
            if result.code:
                raise UsageError(result.message)
        return FileResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    async def decision(self, request: Request) -> Response:
        """Say which model each site should use, and how sure that is.

        Args:
            request: The request, with the folder of the run.

        Returns:
            The page.

        Raises:
            UsageError: If there is no decision.
        """
        folder = self._folder_of(request)
        verdict = await run_in_threadpool(read_decision, folder)
        if verdict is None:
            raise UsageError(
                f"'{folder.name}' has no decision: it is not finished, or its methods were not "
                "tested on the same rows"
            )
        command = f"equipoise choose {shlex.quote(str(folder))}"
        return self.render(
            "decision.html.j2",
            name=folder.name,
            decision=verdict,
            command=command,
            has_choice=(folder / "chosen").is_dir(),
            costs=await run_in_threadpool(_costs, folder),
            score=partial(_score_text, verdict.metric),
            difference=partial(_difference_text, verdict.metric),
        )

    async def choose(self, request: Request) -> Response:
        """Train the chosen models on all rows of each site."""
        folder = self._folder_of(request)
        arguments = ["choose", str(folder), "--overwrite"]
        await run_in_threadpool(self.jobs.start, arguments, folder, self.folder)
        return _redirect(f"/runs/{folder.name}")

    async def film(self, request: Request) -> Response:
        """Film an episode of the first agent of a run.

        Args:
            request: The request, with the folder of the run.

        Returns:
            The response.

        Raises:
            UsageError: If the episode cannot be filmed.
        """
        folder = self._folder_of(request)
        name = f"{folder.name}-{os.urandom(3).hex()}.gif"
        film = self.paths.state / "films" / name
        film.parent.mkdir(parents=True, exist_ok=True)
        result = await run_command(["play", str(folder), "--video", str(film)], self.folder)
        if result.code:
            raise UsageError(result.message)
        return self.render("film.html.j2", file=name, result=result)

    async def film_file(self, request: Request) -> Response:
        """Return a film."""
        return self._state_file("films", request.path_params["file"], "image/gif")

    def _state_file(self, kind: str, name: str, media_type: str) -> Response:
        """Return a file that the studio made for a page.

        Raises:
            UsageError: If it is gone.
        """
        file = self.paths.state / kind / Path(name).name
        if not file.is_file():
            raise UsageError("this file is gone: make it again")
        return FileResponse(file, filename=file.name, media_type=media_type)

    def _folder_of(self, request: Request) -> Path:
        """Return the folder of a run, which a job that has just started may not have made yet."""
        name = str(request.path_params["name"])
        folder = self.paths.runs / name
        if not folder.exists() and self.jobs.latest(folder) is not None:
            return folder
        return self.paths.run_folder(name)

    # ---------------------------------------------------------------- predict

    async def predict(self, request: Request) -> Response:
        """Choose a model and a table to predict."""
        entries = await run_in_threadpool(self.library.entries)
        tables = await run_in_threadpool(self.paths.tables)
        return self.render(
            "predict.html.j2",
            entries=[entry for entry in entries if entry.state == "finished"],
            tables=[(table, _display_path(table, self.folder)) for table in tables],
            chosen=request.query_params.get("run", ""),
        )

    async def predictions(self, request: Request) -> Response:
        """Predict the rows of a table; return the first lines and a link to all."""
        form = await _form(request)
        folder = self.paths.run_folder(form.get("run", ""))
        rows = self.paths.data_path(form.get("path", ""))
        name = f"{folder.name}-{rows.stem}-{os.urandom(3).hex()}.csv"
        out = self.paths.state / "predictions" / name
        arguments = ["predict", str(folder), str(rows), "--out", str(out)]
        for option in ("client", "client_column", "id"):
            if value := form.get(option, "").strip():
                arguments += [f"--{option.replace('_', '-')}", value]
        result = await run_command(arguments, self.folder)
        lines = []
        if not result.code:
            lines = await run_in_threadpool(_first_lines, out, PREVIEW_LINES)
        return self.render(
            "predictions.html.j2",
            problem=result.message if result.code else "",
            output=result.output,
            lines=lines,
            file=name,
            command=result.command,
        )

    async def download(self, request: Request) -> Response:
        """Return a file of predictions."""
        return self._state_file("predictions", request.path_params["file"], "text/csv")


def create_app(paths: StudioPaths, secrets: Secrets) -> Starlette:
    """Create the web application.

    Args:
        paths: Directories that it may use.
        secrets: Secrets of this start.

    Returns:
        The application.
    """
    studio = Studio(paths, secrets)
    page = partial(_page, studio)
    routes = [
        Route("/", page(_to_data)),
        Route("/data", page(studio.data)),
        Route("/data/table", page(studio.table)),
        Route("/upload", page(studio.upload), methods=["PUT"]),
        Route("/new", page(studio.new)),
        Route("/new", page(studio.start), methods=["POST"]),
        Route("/new/command", page(studio.command), methods=["POST"]),
        Route("/runs", page(studio.runs)),
        Route("/runs/{name}", page(studio.run)),
        Route("/runs/{name}/events", page(studio.events)),
        Route("/runs/{name}/report", page(studio.report)),
        Route("/runs/{name}/decision", page(studio.decision)),
        Route("/runs/{name}/choose", page(studio.choose), methods=["POST"]),
        Route("/runs/{name}/stop", page(studio.stop), methods=["POST"]),
        Route("/runs/{name}/resume", page(studio.resume), methods=["POST"]),
        Route("/runs/{name}/delete", page(studio.delete), methods=["POST"]),
        Route("/runs/{name}/film", page(studio.film), methods=["POST"]),
        Route("/films/{file}", page(studio.film_file)),
        Route("/predict", page(studio.predict)),
        Route("/predict", page(studio.predictions), methods=["POST"]),
        Route("/predictions/{file}", page(studio.download)),
        Route("/static/plotly.js", _plotly),
        Route("/static/shared/{file}", shared_with_report),
        Mount("/static", StaticFiles(packages=[("equipoise.studio", "static")])),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, secrets=secrets)])


def _page(studio: Studio, handler: Page) -> Page:
    """Turn errors of a handler into a sentence on a page."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except UsageError as error:
            message = str(error)
        except OSError as error:
            message = f"the disk refused: {error.strerror or error}; nothing that was saved is lost"
        if "hx-request" in request.headers:  # htmx puts it into the page
            return studio.render("problem.html.j2", message=message)
        if request.method == "PUT":
            return JSONResponse({"problem": message}, 400)
        return studio.render("error.html.j2", 404, message=message)

    return answer


async def _to_data(request: Request) -> Response:
    return RedirectResponse("/data", 303)


async def _plotly(request: Request) -> Response:
    """Return Plotly's script from its Python package."""
    file = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    return FileResponse(file, headers={"Cache-Control": "max-age=86400"})


async def _form(request: Request) -> dict[str, str]:
    """Return the values of a form by the names of its inputs; several of one name are joined."""
    body = (await request.body()).decode()
    fields = parse_qs(body, keep_blank_values=True, max_num_fields=2000)
    return {name: ",".join(values) for name, values in fields.items()}


def _redirect(address: str) -> Response:
    """Send the browser to another page, after a form that htmx submitted."""
    return Response(headers={"HX-Redirect": address})


def _progress(cells: list[CellProgress]) -> dict[str, object]:
    """Return what a page shows of running work, as JSON values."""
    rows = [
        {
            "label": f"{cell.method}, seed {cell.seed}",
            "fraction": cell.fraction,
            "rounds": f"{cell.rounds_done} of {cell.rounds}",
            "score": cell.last_score,
        }
        for cell in cells
    ]
    curves = [
        {
            "label": f"{cell.method}, seed {cell.seed}",
            "method": cell.method,
            "metric": cell.metric,
            "personal": cell.personal,
            "global": cell.global_,
        }
        for cell in cells
    ]
    fraction = sum(cell.fraction for cell in cells) / max(1, len(cells))
    return {"rows": rows, "curves": curves, "fraction": fraction}


def _costs(folder: Path) -> list[tuple[str, float, float]]:
    """Return what each method of a comparison cost: mean seconds and mean megabytes of a run."""
    costs = []
    for method, summaries in ComparisonFolder(folder).read().summaries.items():
        seconds = fmean(summary.seconds for summary in summaries)
        traffic = fmean(summary.bytes.up + summary.bytes.down for summary in summaries)
        costs.append((method, seconds, traffic / 1e6))
    return costs


def _has_agents(folder: Path) -> bool:
    """Return whether a finished run has agents that can be filmed: models without a card."""
    models = folder / "models"
    return (models / "personal.safetensors").is_file() and not (models / "card.json").is_file()


def _command_text(arguments: list[str]) -> str:
    """Return a command as a user types it."""
    return CommandResult(tuple(arguments), 0, "", "").command


def _display_path(path: str, folder: Path) -> str:
    """Return a path relative to the folder of the studio, if it is below it; else in words."""
    full = Path(path)
    base = folder.resolve()
    if full == base:
        return f"all files of {base.name}, one per site"
    return str(full.relative_to(base)) if full.is_relative_to(base) else path


def _first_lines(file: Path, count: int) -> list[list[str]]:
    """Return the first rows of a CSV file."""
    with open(file, newline="", encoding="utf-8") as lines:
        return [row for row, _ in zip(csv.reader(lines), range(count + 1), strict=False)]


def _score_text(metric: str, estimate: Estimate | None) -> str:
    """Return a score with its interval as people write it; empty if it is not known."""
    if estimate is None or math.isnan(estimate.value):
        return ""
    return estimate.score_text(metric)


def _difference_text(metric: str, estimate: Estimate | None, score: Estimate | None) -> str:
    """Return a difference of scores with its interval, with the decimals of the score."""
    if estimate is None or score is None or math.isnan(estimate.value):
        return ""
    return estimate.difference_text(metric, score.value)
