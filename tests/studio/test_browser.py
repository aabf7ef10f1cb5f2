"""The studio in a real browser: from a dropped table to downloaded predictions, with a mistake.

With `EQUIPOISE_SCREENSHOTS=docs/pictures` the pages are also photographed for the documentation.
"""

import os
import time
from pathlib import Path

import pytest

from helpers_browser import PATIENCE, Browser

pytest.importorskip("selenium", reason="Selenium is not installed: pip install selenium")
pytest.importorskip("axe_core_python", reason="axe is not installed: pip install axe-core-python")

import axe_core_python
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from studio.conftest import write_clinics

SCREENSHOTS = os.environ.get("EQUIPOISE_SCREENSHOTS")


def until(browser: Browser, condition):
    passing = (NoSuchElementException, StaleElementReferenceException)
    return WebDriverWait(browser, PATIENCE, ignored_exceptions=passing).until(condition)


def text_of(browser: Browser, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def open_page(browser: Browser, address: str) -> None:
    browser.get(address)
    until(browser, lambda b: b.execute_script("return document.body.dataset.ready") == "yes")


def click(browser: Browser, selector: str) -> None:
    element = browser.find_element(By.CSS_SELECTOR, selector)
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element
    )
    element.click()


def fill(browser: Browser, id: str, text: str) -> None:
    field = browser.find_element(By.ID, id)
    field.clear()
    field.send_keys(text)


def photograph(browser: Browser, name: str) -> None:
    if SCREENSHOTS:
        browser.save_screenshot(str(Path(SCREENSHOTS) / f"studio-{name}.png"))


def check_accessibility(browser: Browser) -> None:
    """Run axe on the page: labels, contrast, focus order and roles at level AA."""
    script = next(Path(axe_core_python.__file__).parent.rglob("axe.min.js")).read_text()
    # The policy of the page forbids inline scripts, also ours: the debugger may run it.
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": script})
    tags = "['wcag2a', 'wcag2aa', 'wcag21aa']"
    found = browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        f"axe.run(document, {{runOnly: {tags}}}).then(r => done(r.violations.map("
        "v => v.id + ': ' + v.nodes.map(n => n.target).join(' '))))"
    )
    assert found == []


@pytest.fixture
def opened(browser: Browser, studio: tuple[str, Path]) -> tuple[Browser, str, Path]:
    address, folder = studio
    open_page(browser, address)
    browser.get_log("browser")
    return browser, address.split("/?")[0], folder


def test_from_a_dropped_table_to_downloaded_predictions(opened, tmp_path) -> None:
    browser, home, _ = opened
    check_accessibility(browser)
    photograph(browser, "data")
    table = write_clinics(tmp_path / "dropped.csv", rows=150)
    browser.find_element(By.ID, "files").send_keys(str(table))
    until(browser, lambda b: "dropped.csv" in text_of(b, "h1"))

    # The column of the sites is found; the target is typed with a mistake first.
    until(browser, lambda b: "choose what to predict" in text_of(b, ".hint"))
    assert (
        Select(browser.find_element(By.ID, "client_column")).first_selected_option.text == "clinic"
    )
    fill(browser, "target", "il")
    click(browser, ".questions button")
    until(browser, lambda b: "did you mean 'ill'" in text_of(b, ".problems"))
    check_accessibility(browser)
    fill(browser, "target", "ill")
    click(browser, ".questions button")
    until(browser, lambda b: "Nothing is in the way" in text_of(b, ".good"))
    check_accessibility(browser)
    photograph(browser, "table")

    click(browser, ".good a")
    until(browser, lambda b: b.current_url.startswith(f"{home}/new"))
    shown = "return document.getElementById('command').textContent"
    until(browser, lambda b: "equipoise compare" in b.execute_script(shown))
    check_accessibility(browser)
    photograph(browser, "compare")
    click(browser, "input[value=quick]")
    fill(browser, "name", "story")
    click(browser, "#start")
    until(browser, lambda b: b.current_url == f"{home}/runs/story")
    until(browser, lambda b: text_of(b, "#state") == "running")
    until(browser, lambda b: "fedavg" in text_of(b, "#cells"))
    photograph(browser, "running")
    until(browser, lambda b: text_of(b, "#state") == "finished")
    check_accessibility(browser)
    assert browser.execute_script("return document.querySelectorAll('#curves .trace').length") >= 3
    photograph(browser, "run")

    click(browser, ".actions a.button")
    until(browser, lambda b: "Which model should each site use?" in text_of(b, "h1"))
    assert text_of(browser, ".verdict")
    for shown in ("north", "south", "west", "What does it cost?", "megabytes"):
        assert shown in text_of(browser, "main")
    check_accessibility(browser)
    photograph(browser, "decision")
    click(browser, ".actions button")
    until(browser, lambda b: b.current_url == f"{home}/runs/story")
    until(browser, lambda b: text_of(b, "#state") == "finished")

    open_page(browser, f"{home}/predict?run=story")
    new_rows = write_clinics(tmp_path / "new.csv", rows=30)
    browser.find_element(By.ID, "files").send_keys(str(new_rows))
    until(browser, lambda b: "is chosen" in text_of(b, "#upload-state"))
    fill(browser, "client_column", "clinic")
    click(browser, "#start")
    until(browser, lambda b: b.find_element(By.CSS_SELECTOR, "#answer .good"))
    link = browser.find_element(By.CSS_SELECTOR, "#answer a.button").get_attribute("href")
    lines = browser.execute_async_script(
        "const done = arguments[1]; fetch(arguments[0]).then(r => r.text()).then(done)", link
    )
    assert lines.count("\n") == 31
    check_accessibility(browser)
    photograph(browser, "predict")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_stop_and_resume_in_two_tabs(opened) -> None:
    browser, home, folder = opened
    open_page(browser, f"{home}/new?path=clinics.csv&client_column=clinic&target=ill")
    Select(browser.find_element(By.ID, "path")).select_by_visible_text("clinics.csv")
    click(browser, "input[value=thorough]")
    fill(browser, "name", "long")
    click(browser, "#start")
    until(browser, lambda b: b.current_url == f"{home}/runs/long")
    until(browser, lambda b: "of 150" in text_of(b, "#cells"))
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    open_page(browser, f"{home}/runs/long")
    click(browser, ".actions button")
    until(browser, lambda b: text_of(b, "#state") == "stopped")
    browser.close()
    browser.switch_to.window(first)
    until(browser, lambda b: text_of(b, "#state") == "stopped")
    before = {log: log.read_text() for log in folder.glob("runs/long/*/seed-0/rounds.jsonl")}
    click(browser, ".actions button")
    until(browser, lambda b: text_of(b, "#state") == "running")
    time.sleep(0.5)
    click(browser, ".actions button")
    until(browser, lambda b: text_of(b, "#state") == "stopped")
    for log, text in before.items():
        assert log.read_text().startswith(text)


def test_hostile_names_run_nothing_and_keyboard_is_enough(opened) -> None:
    browser, home, folder = opened
    evil = "<img src=x onerror=document.title=1>"
    rows = "".join(f'"{evil}{k % 2}",{k},{k % 3}\n' for k in range(60))
    (folder / "evil.csv").write_text(f'site,"{evil}",ill\n{rows}')
    open_page(browser, f"{home}/data/table?path=evil.csv&client_column=site&target=ill")
    assert browser.title != "1"
    assert evil in text_of(browser, "main")
    open_page(browser, f"{home}/data")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"


@pytest.mark.parametrize("dark", [False, True])
def test_phone_width_and_dark_pages_fit(opened, dark) -> None:
    browser, home, _ = opened
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    screen = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        pages = ["data", "runs", "predict", "new"]
        pages.append("data/table?path=clinics.csv&client_column=clinic&target=ill")
        for page in pages:
            open_page(browser, f"{home}/{page}")
            too_wide = "return document.documentElement.scrollWidth > window.innerWidth"
            assert not browser.execute_script(too_wide), page
            check_accessibility(browser)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
