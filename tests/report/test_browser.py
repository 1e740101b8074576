"""Tests of the report page in Chromium with a study of two thousand records: no console errors, no requests, and its controls."""

import numpy as np
import pytest

from scaling.analysis import folder_comparison
from scaling.core.case import label
from scaling.report.comparison import write_comparison
from scaling.report.figures import marks
from tests.support import made_up, reports
from tests.support.chromium import chromium
from tests.support.records import record

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = made_up.write(
        tmp_path_factory.mktemp("browser") / "made", made_up.study(2000), name="<u>study</u>"
    )
    return reports.write_report(folder)


@pytest.fixture(scope="module")
def browser():
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser, index):
    browser.requests.clear()
    browser.problems.clear()
    browser.open(index)
    return browser


def test_page_of_two_thousand_records_opens_without_errors_or_requests(browser, index):
    browser.requests.clear()
    browser.problems.clear()
    browser.open(index)
    assert browser.problems == [] and set(browser.requests) == {index.as_uri()}
    assert browser.eval("document.querySelectorAll('#measured tbody tr').length") > 500
    assert index.stat().st_size < 2_500_000


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (820, True), (1400, False)])
def test_page_and_its_columns_are_never_wider_than_its_window(browser, index, width, dark):
    browser.open(index, width=width, dark=dark)
    assert browser.eval("document.documentElement.scrollWidth") == width
    ground = browser.eval("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(22, 24, 28)" if dark else "rgb(255, 255, 255)")
    assert wait_for_panels(browser) > 20 and browser.problems == []
    assert (
        browser.eval(
            "[...document.querySelectorAll('.chart svg')].every(each => each.clientWidth <= innerWidth)"
        )
        or width < 700
    )
    ink = browser.eval("getComputedStyle(document.querySelector('.chart svg text')).fill")
    assert ink == "rgb(28, 30, 33)"
    assert (
        browser.eval("getComputedStyle(document.querySelector('.chart')).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    for table in ("fastest", "review"):
        browser.eval(f"document.getElementById('{table}').open = true")
        last = f"[...document.querySelectorAll('#{table} tbody tr')].map(row => row.lastElementChild.getBoundingClientRect().right)"
        edge = f"document.querySelector('#{table} .scroll').getBoundingClientRect().right"
        assert browser.eval(f"Math.max(...{last}) <= {edge} + 1"), f"the last column of {table} is clipped"


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_a_short_table_of_the_fastest_modes_is_not_cut(browser, tmp_path, width):
    records = [
        record(1, s, mode=m, points=p) for p in range(1, 7) for m, s in (("jacfwd", 1.0), ("jacrev", 2.0))
    ]
    browser.open(reports.write_report(made_up.write(tmp_path / "made", records)), width=width)
    box = "document.querySelector('#fastest .scroll')"
    assert browser.eval(f"{box}.querySelectorAll('tbody tr').length") == 6
    assert browser.eval(f"{box}.scrollHeight <= {box}.clientHeight")


def test_cards_fill_the_width_of_the_page(browser, tmp_path):
    browser.open(reports.write_report(made_up.write(tmp_path / "made", [record(1), record(2)])), width=1400)
    width = "(name => document.querySelector(name).clientWidth)"
    assert browser.eval("document.querySelectorAll('.cards li').length") == 1
    assert browser.eval(f"{width}('.cards li') >= {width}('.cards') - 2")


def test_a_long_name_in_a_legend_or_a_table_of_answers_is_wrapped(browser, tmp_path):
    records = [
        record(d, 1.0 / d, mode=m, workload="w" * 80, formulation="f" * 80)
        for d in (1, 2)
        for m in ("jacfwd", "jacrev")
    ]
    browser.open(reports.write_report(made_up.write(tmp_path / "made", records)), width=390)
    assert browser.eval("document.documentElement.scrollWidth") == 390
    box = "document.querySelector('#fastest .scroll')"
    assert browser.eval(f"{box}.scrollWidth <= {box}.clientWidth"), "the table is clipped"


def wait_for_panels(page):
    """Wait until all panels are drawn and return their number."""
    wait = """new Promise(done => { const look = () => document.documentElement.dataset.drawn
      ? done(Number(document.documentElement.dataset.drawn)) : setTimeout(look, 50); look(); })"""
    return page.eval(wait)


def scroll_to_center(page, selector):
    """Scroll to an element and return the coordinates of its center."""
    page.eval(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    box = f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect(); "
    return page.eval(box + "return [box.x + box.width / 2, box.y + box.height / 2]; })()")


POINT = "#devices .chart .mark-symbol path"


def test_tooltip_of_a_mark_shows_the_values_of_its_record(page):
    wait_for_panels(page)
    x, y = scroll_to_center(page, POINT)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    text = page.eval(
        "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    )
    name, time, *ratios, samples = text.split("\n")
    assert name.endswith("devices=1") and "s (" in time and samples.endswith("processes")
    assert [word.split(" ")[0] for word in ratios] == ["speed-up", "efficiency", "speed-up"]
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert page.eval("document.getElementById('tip').hidden") is True


def count_dimmed(page, figure):
    """Return how many marks of a figure are dimmed, and how many are not."""
    expression = f"[...document.querySelectorAll('#{figure} .chart .mark-symbol path')].map(each => each.getAttribute('opacity'))"
    opacities = page.eval(expression)
    dimmed = sum(opacity is not None and float(opacity) < 0.5 for opacity in opacities)
    return dimmed, len(opacities) - dimmed


def test_legend_button_toggles_the_isolation_of_a_mode_in_all_figures(page):
    wait_for_panels(page)
    assert count_dimmed(page, "devices")[0] == count_dimmed(page, "size")[0] == 0
    button = "[...document.querySelectorAll('#devices .legend button')].find(each => each.dataset.line.startsWith('jacrev'))"
    page.eval(f"{button}.focus()")
    page.press("Enter")
    page.eval("new Promise(done => setTimeout(done, 300))")
    for figure in ("devices", "size"):
        dimmed, kept = count_dimmed(page, figure)
        assert dimmed > kept > 0, figure
    assert page.eval(f"{button}.getAttribute('aria-pressed')") == "true"
    page.press("Enter")
    page.eval("new Promise(done => setTimeout(done, 300))")
    assert count_dimmed(page, "devices")[0] == count_dimmed(page, "size")[0] == 0


def test_isolation_of_a_mode_leaves_out_a_mode_whose_name_begins_like_it(page):
    names = ["analytic", "analytic, jit", "analytic_vmap"]
    is_kept = f"datum => {{ const indexof = (a, b) => a.indexOf(b), isolated = 'analytic'; return Boolean({marks._ISOLATED}); }}"
    assert page.eval(f"{names}.map(line => ({is_kept})({{line}}))") == [True, True, False]


def test_wheel_zooms_only_with_shift(page):
    wait_for_panels(page)
    ticks = "[...document.querySelectorAll('#devices .chart')][0].querySelector('.mark-symbol path').getAttribute('transform')"
    x, y = scroll_to_center(page, POINT)
    before = page.eval(ticks)
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=x + 60, y=y, deltaX=0, deltaY=-200)
    page.eval("new Promise(done => setTimeout(done, 200))")
    assert page.eval(ticks) == before
    x, y = scroll_to_center(page, POINT)
    page.call(
        "Input.dispatchMouseEvent", type="mouseWheel", x=x + 60, y=y, deltaX=0, deltaY=-200, modifiers=8
    )
    page.eval("new Promise(done => setTimeout(done, 200))")
    assert page.eval(ticks) != before
    assert page.problems == []


def column(page, heading):
    """Return the texts of a column of the table of measurements in its visible rows."""
    headings = page.eval(
        "[...document.querySelectorAll('#measured thead th')].map(th => wordsOf(th.textContent).replace(/ .$/, ''))"
    )
    rows = "[...document.querySelectorAll('#measured tbody tr:not([hidden])')]"
    return page.eval(f"{rows}.map(row => wordsOf(row.cells[{headings.index(heading)}].textContent))")


def go_to(page, address):
    """Open an address within the page and wait for the page to react."""
    page.eval(f"location.hash = {address!r}; new Promise(done => setTimeout(done, 300))")


def seconds(text):
    number, unit = text.split()[:2]
    return float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


def test_keyboard_sorts_a_table_by_value_and_the_address_keeps_the_order(page):
    go_to(page, "measured")
    button = "[...document.querySelectorAll('#measured thead th')].find(th => th.textContent === 'time').querySelector('button')"
    page.eval(f"{button}.focus()")
    page.press("Enter")
    times = [seconds(text) for text in column(page, "time")]
    assert times == sorted(times) and times[0] < 1e-3 < 1 < times[-1]
    assert page.eval("location.hash") == "#measured?sort=time"
    page.press("Enter")
    assert [seconds(text) for text in column(page, "time")] == sorted(times, reverse=True)
    assert page.eval("location.hash") == "#measured?sort=time&down=1"


def test_ratios_are_sorted_by_their_decimals(page):
    go_to(page, "measured?sort=speed-up")
    ratios = [float(text.split("x")[0]) for text in column(page, "speed-up") if text[:1].isdigit()]
    assert ratios == sorted(ratios) and len({int(ratio) for ratio in ratios}) < len(set(ratios))


def test_percentages_under_one_weak_ratios_and_missing_numbers_are_sorted_among_numbers(page):
    missing = {"none", "not determined (0.7 to 15)", "weak not determined (0.7 to 15)"}
    texts = ["9 %", *missing, "under 1 %", "weak 0.12x (0.11 to 0.13)", "100 %", "weak 0.0512x", "1 %"]
    cells = "".join(f"<tr><td>{text}</td></tr>" for text in texts)
    page.eval(f"""{{ const table = document.createElement('table');
      table.innerHTML = '<thead><tr><th>share</th></tr></thead><tbody>{cells}</tbody>'; window.shares = table; }}""")
    numbers = ["weak 0.0512x", "weak 0.12x (0.11 to 0.13)", "under 1 %", "1 %", "9 %", "100 %"]
    for down, expected in (("false", numbers), ("true", numbers[::-1])):
        page.eval(f"sortRows(shares, 'share', {down})")
        shown = page.eval("[...shares.tBodies[0].rows].map(row => row.textContent)")
        assert shown[:6] == expected and set(shown[6:]) == missing


def test_address_filters_and_sorts_a_table(browser, index):
    browser.open(f"{index}")
    go_to(browser, "measured?q=jacrev+devices%3D64&sort=devices")
    assert set(column(browser, "devices")) == {"64"}
    assert all("jacrev" in case for case in column(browser, "case"))
    shown = len(column(browser, "case"))
    assert browser.eval("document.querySelector('#measured output').textContent").startswith(f"{shown} of ")


def test_label_pasted_into_the_filter_finds_only_its_row(page):
    labels = [
        label(case)
        for case in (made_up.case_of("rbf", "jacrev", 0, 1), made_up.case_of("linear", "jacfwd", 2, 16))
    ]
    for text in labels:
        page.eval(f"""{{ const search = document.querySelector('#measured input[type=search]'); search.value = {text!r};
          search.dispatchEvent(new Event('input', {{bubbles: true}})); }}""")
        assert column(page, "case") == [text]


def test_anchor_of_a_row_opens_the_panel_of_its_case(page):
    anchor = page.eval("document.querySelector('#measured tbody tr').id")
    go_to(page, anchor)
    assert page.eval("document.getElementById('measured').open") is True
    assert page.eval("document.querySelectorAll('#panel .mark-symbol path').length") >= 15
    text = page.eval("document.getElementById('panel').textContent")
    assert "compile " in text and "peak memory" in text and "error " in text
    assert page.problems == []


def test_first_column_stays_in_place(browser, index):
    browser.open(index, width=390)
    go_to(browser, "measured")
    left = "document.querySelector('#measured tbody th').getBoundingClientRect().left"
    before = browser.eval(left)
    browser.eval("document.querySelector('#measured .scroll').scrollLeft = 300")
    assert browser.eval(left) == before


def test_comparison_page_shows_the_samples_of_both_folders_without_errors(browser, tmp_path):
    generator, folders = np.random.default_rng(0), {}
    for name, factor in (("a", 1.0), ("b", 2.0)):
        case = made_up.case_of("rbf", "jacfwd", 1)
        records = [made_up.timed(generator, case, 0.01 * factor, replicate) for replicate in range(4)]
        folders[name] = made_up.write(tmp_path / name, records)
    index = write_comparison(folder_comparison.compare(folders["a"], folders["b"]))
    browser.requests.clear()
    browser.problems.clear()
    browser.open(index)
    assert browser.eval("document.querySelector('#changed tbody tr td').textContent") == "slower"
    go_to(browser, browser.eval("document.querySelector('#changed tbody tr').id"))
    strokes = browser.eval(
        "[...document.querySelectorAll('#panel .mark-line path')].map(path => path.getAttribute('stroke'))"
    )
    assert len(strokes) == 8 and len(set(strokes)) == 2
    assert browser.problems == [] and set(browser.requests) == {index.as_uri()}
    browser.open(index, width=390)
    widths = browser.eval(
        "(each => [each.scrollWidth, each.clientWidth])(document.querySelector('#changed .scroll'))"
    )
    assert widths[0] == widths[1], "a column is out of sight on a phone"


def test_text_from_records_creates_no_element(page):
    wait_for_panels(page)
    assert page.eval("document.querySelectorAll('script').length") == 4
    assert page.eval("document.querySelectorAll('img, iframe, u').length") == 0
    assert made_up.NASTY.split("\n")[0] in page.eval("document.querySelector('#unmeasured').textContent")


def test_link_into_a_folded_section_unfolds_it(page):
    page.eval("location.hash = '#machine'")
    assert (
        page.eval("new Promise(done => setTimeout(() => done(document.getElementById('machine').open), 50))")
        is True
    )


def test_printed_page_is_unfolded_and_has_no_scroll_areas(page, tmp_path):
    panels = wait_for_panels(page)
    page.call("Emulation.setEmulatedMedia", media="print")
    page.eval("dispatchEvent(new Event('beforeprint'))")
    sizes = page.eval(
        "['h1', '.cards h2', 'td'].map(s => getComputedStyle(document.querySelector(s)).fontSize)"
    )
    assert [float(size.removesuffix("px")) for size in sizes] == pytest.approx(
        [4 / 3 * points for points in (1.6 * 9.5, 0.9 * 9.5, 7.5)], abs=0.1
    )
    assert page.eval("document.querySelectorAll('details:not([open])').length") == 0
    scrolls = "[...document.querySelectorAll('.scroll')].filter(each => getComputedStyle(each).overflowY !== 'visible').length"
    assert page.eval(scrolls) == 0
    assert page.eval("getComputedStyle(document.querySelector('.tools')).display") == "none"
    for heading in ("summary", ".legend"):
        style = f"getComputedStyle(document.querySelector('{heading}'))"
        assert page.eval(f"[{style}.breakInside, {style}.breakAfter]") == ["avoid", "avoid"]
    page.eval("dispatchEvent(new Event('afterprint'))")
    assert page.eval("document.querySelectorAll('details:not([open])').length") > 0
    assert page.eval("document.querySelectorAll('.chart svg').length") == panels
    page.print_pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
