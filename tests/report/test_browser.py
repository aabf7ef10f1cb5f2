"""The report in a real browser: Debian's Chromium, driven by Selenium
(`make browser` installs it).
"""

import json
from pathlib import Path

import pytest

from helpers_browser import PATIENCE, Browser

pytest.importorskip(
    "selenium", reason="Selenium is not installed: pip install 'equipoise[browser]'"
)
pytest.importorskip("plotly", reason="the extra report is not installed")

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


def visit(browser: Browser, folder: Path, *, dark: bool = False, width: int = 1280) -> None:
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what earlier pages left
    browser.get((folder / "report.html").resolve().as_uri())
    WebDriverWait(browser, PATIENCE).until(
        lambda b: b.execute_script("return document.body.dataset.ready") == "yes"
    )


@pytest.mark.parametrize("kind", ["page_run", "comparison", "tabular_run", "policy_run"])
def test_draws_everything_without_errors_or_requests(
    browser: Browser,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    visit(browser, request.getfixturevalue(kind))
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    # chrome: and chrome-untrusted: are the browser's own first page, which may still be loading.
    local = ("file:", "data:", "blob:", "chrome:", "chrome-untrusted:")
    assert [url for url in asked if not url.startswith(local)] == []
    plots = browser.find_elements(By.CSS_SELECTOR, ".plot")
    assert len(plots) >= 6
    marks = ".trace, .heatmaplayer image, .boxlayer path, .scatterlayer path"
    drawn = f"return arguments[0].querySelectorAll('{marks}').length"
    assert all(browser.execute_script(drawn, plot) > 0 for plot in plots)
    buttons = browser.find_elements(By.CSS_SELECTOR, ".modebar-btn")
    assert not [
        b for b in buttons if "loud" in (b.get_attribute("data-title") or "")
    ]  # nothing that uploads


def test_legend_hides_and_shows_a_method(browser: Browser, comparison: Path) -> None:
    visit(browser, comparison)
    visible = "return arguments[0]._fullData.filter(t => t.name === 'fedavg').map(t => t.visible)"
    plot = browser.find_element(By.ID, "plot-1")
    assert True in browser.execute_script(visible, plot)
    toggles = plot.find_elements(By.CSS_SELECTOR, ".legend .traces")
    [ours] = [t for t in toggles if t.text == "fedavg"]
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot
    )
    ours.find_element(By.CSS_SELECTOR, ".legendtoggle").click()
    WebDriverWait(browser, PATIENCE).until(
        lambda b: "legendonly" in b.execute_script(visible, plot)
    )
    assert True not in browser.execute_script(visible, plot)  # the band goes with the line


def test_table_sorts_both_ways(browser: Browser, comparison: Path) -> None:
    visit(browser, comparison)

    def column() -> list[float]:
        cells = browser.find_elements(
            By.CSS_SELECTOR, "#result table:first-of-type tbody tr td:nth-child(3)"
        )
        return [float(cell.get_attribute("data-value") or "nan") for cell in cells][:3]

    button = browser.find_element(By.CSS_SELECTOR, "#result th:nth-child(3) button")
    button.click()
    assert column() == sorted(column(), reverse=True)  # the best first: more is better
    button.click()
    assert column() == sorted(column())
    name = browser.find_element(By.CSS_SELECTOR, "#result th:nth-child(2) button")
    name.click()
    first = browser.find_elements(By.CSS_SELECTOR, "#result tbody tr td:first-child")[2]
    assert first.text == "local"  # without a global model: last either way
    name.click()
    assert (
        browser.find_elements(By.CSS_SELECTOR, "#result tbody tr td:first-child")[2].text == "local"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_theme_follows_the_system(browser: Browser, page_run: Path, dark: bool) -> None:
    visit(browser, page_run, dark=dark)
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    ink = browser.execute_script("return document.getElementById('plot-0')._fullLayout.font.color")
    assert (paper == "rgb(15, 19, 24)") is dark
    assert (ink == "#e6edf3") is dark


def test_phone_has_no_sideways_scroll(browser: Browser, comparison: Path) -> None:
    visit(browser, comparison, width=390)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    widths = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(p => p.offsetWidth)"
    )
    assert min(widths) > 300


@pytest.mark.parametrize("kind", ["page_run", "comparison"])
def test_no_table_is_clipped_at_1400_pixels(
    browser: Browser, kind: str, request: pytest.FixtureRequest
) -> None:
    visit(browser, request.getfixturevalue(kind), width=1400)
    browser.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    tables = browser.execute_script(
        "return [...document.querySelectorAll('#result .scroll, #clients .scroll')]"
        ".map(part => [part.scrollWidth, part.clientWidth])"
    )
    assert tables
    assert [(inner, outer) for inner, outer in tables if inner > outer] == []
    assert browser.find_element(By.CSS_SELECTOR, ".verdict").text
