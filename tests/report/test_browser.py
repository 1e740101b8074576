"""What Chromium makes of the page of a study of two thousand records: without a complaint, and asking for nothing."""

import pytest

from scaling.report import write_report
from tests.support import made_up
from tests.support.chromium import chromium

pytestmark = pytest.mark.browser

WIDTHS = (390, 820, 1400)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = made_up.write(
        tmp_path_factory.mktemp("browser") / "made", made_up.study(2000), name="<u>study</u>"
    )
    return write_report.write_report(folder)


@pytest.fixture(scope="module")
def browser():
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser, index):
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(index)
    return browser


def test_two_thousand_records_open_without_complaint_or_request(browser, index):
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(index)
    assert browser.complaints == [] and set(browser.requests) == {index.as_uri()}
    assert browser.ask("document.querySelectorAll('#measured tbody tr').length") > 500


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_its_window(browser, index, width, dark):
    browser.open(index, width=width, dark=dark)
    assert browser.ask("document.documentElement.scrollWidth") == width
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(22, 24, 28)" if dark else "rgb(255, 255, 255)")
    assert drawn(browser) > 40 and browser.complaints == []
    assert (
        browser.ask(
            "[...document.querySelectorAll('.chart svg')].every(each => each.clientWidth <= innerWidth)"
        )
        or width < 700
    )
    ink = browser.ask("getComputedStyle(document.querySelector('.chart svg text')).fill")
    assert ink == ("rgb(230, 232, 235)" if dark else "rgb(28, 30, 33)")


def drawn(page):
    """The number of panels, when all of them are drawn."""
    wait = """new Promise(done => { const look = () => document.documentElement.dataset.drawn
      ? done(Number(document.documentElement.dataset.drawn)) : setTimeout(look, 50); look(); })"""
    return page.ask(wait)


def middle(page, selector):
    """The middle of an element that is scrolled to."""
    page.ask(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    box = f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect(); "
    return page.ask(box + "return [box.x + box.width / 2, box.y + box.height / 2]; })()")


POINT = "#devices .chart .mark-symbol path"


def test_a_mark_says_the_numbers_of_its_record_where_the_pointer_is(page):
    drawn(page)
    x, y = middle(page, POINT)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = page.ask("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
    name, devices, time, samples = said.split("\n")
    assert (
        name.endswith("points split")
        and devices == "1 device"
        and "ms (" in time
        and samples.endswith("samples")
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert page.ask("document.getElementById('tip').hidden") is True


def pale(page, figure):
    """How many marks of a figure are dimmed, and how many are not."""
    every = f"[...document.querySelectorAll('#{figure} .chart .mark-symbol path')].map(each => each.getAttribute('opacity'))"
    opacities = page.ask(every)
    dimmed = sum(each is not None and float(each) < 0.5 for each in opacities)
    return dimmed, len(opacities) - dimmed


def test_a_press_in_a_legend_isolates_a_mode_in_all_figures_and_another_ends_it(page):
    drawn(page)
    assert pale(page, "devices")[0] == pale(page, "size")[0] == 0
    button = "[...document.querySelectorAll('#devices .legend button')].find(each => each.dataset.line.startsWith('jacrev'))"
    page.ask(f"{button}.focus()")
    page.press("Enter")
    page.ask("new Promise(done => setTimeout(done, 300))")
    for figure in ("devices", "size", "compile"):
        dimmed, kept = pale(page, figure)
        assert dimmed > kept > 0, figure
    assert page.ask(f"{button}.getAttribute('aria-pressed')") == "true"
    page.press("Enter")
    page.ask("new Promise(done => setTimeout(done, 300))")
    assert pale(page, "devices")[0] == pale(page, "size")[0] == 0


def test_the_wheel_with_shift_zooms_and_without_it_scrolls(page):
    drawn(page)
    ticks = "[...document.querySelectorAll('#devices .chart')][0].querySelector('.mark-symbol path').getAttribute('transform')"
    x, y = middle(page, POINT)
    before = page.ask(ticks)
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=x + 60, y=y, deltaX=0, deltaY=-200)
    page.ask("new Promise(done => setTimeout(done, 200))")
    assert page.ask(ticks) == before
    x, y = middle(page, POINT)
    page.call(
        "Input.dispatchMouseEvent", type="mouseWheel", x=x + 60, y=y, deltaX=0, deltaY=-200, modifiers=8
    )
    page.ask("new Promise(done => setTimeout(done, 200))")
    assert page.ask(ticks) != before
    assert page.complaints == []


def column(page, index):
    rows = "[...document.querySelectorAll('#measured tbody tr:not([hidden])')]"
    return page.ask(f"{rows}.map(row => row.cells[{index}].textContent.trim())")


def sorted_by(page, heading):
    """Return the column with this heading after its button was pressed."""
    headings = page.ask("[...document.querySelectorAll('#measured th')].map(th => th.textContent.trim())")
    index = headings.index(heading)
    page.ask(f"document.querySelectorAll('#measured th button')[{index}].click()")
    return column(page, index)


def seconds(text):
    number, unit = text.split()[:2]
    return float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


def test_a_table_is_sorted_from_the_keyboard_by_what_its_numbers_are(page):
    header = "[...document.querySelectorAll('#measured th')].find(th => th.textContent.startsWith('time'))"
    page.ask(f"{header}.querySelector('button').focus()")
    page.press("Enter")
    times = [seconds(text) for text in column(page, 6)]
    assert times == sorted(times) and times[0] < 1e-3 < 1 < times[-1]
    assert page.ask(f"{header}.getAttribute('aria-sort')") == "ascending"
    page.press("Enter")
    assert [seconds(text) for text in column(page, 6)] == sorted(times, reverse=True)


def test_devices_are_sorted_as_numbers_and_what_is_not_known_comes_last(page):
    devices = [int(text) for text in sorted_by(page, "devices")]
    assert devices == sorted(devices) and devices[-1] == 64
    known = [bool(text) for text in sorted_by(page, "split")]
    assert known == sorted(known, reverse=True) and not all(known)


def test_a_filter_leaves_the_rows_with_all_of_its_words(page):
    page.ask("""{ const search = document.querySelector('#measured input[type=search]');
      search.value = 'RBF jacrev';
      search.dispatchEvent(new Event('input', {bubbles: true})); }""")
    assert {(name, mode) for name, mode in zip(column(page, 0), column(page, 2), strict=True)} == {
        ("rbf grad_map by x", "jacrev (vmap)")
    }
    page.ask("""{ const select = [...document.querySelectorAll('#measured select')].find(each => each.parentElement.textContent
      .startsWith('devices')); select.value = '64'; select.dispatchEvent(new Event('input', {bubbles: true})); }""")
    assert set(column(page, 5)) == {"64"}
    shown = len(column(page, 5))
    assert page.ask("document.querySelector('#measured output').textContent").startswith(f"{shown} of ")


def test_text_from_records_makes_no_element(page):
    drawn(page)
    assert page.ask("document.querySelectorAll('script').length") == 3
    assert page.ask("document.querySelectorAll('img, iframe, u').length") == 0
    assert made_up.NASTY.split("\n")[0] in page.ask("document.querySelector('#unmeasured').textContent")


def test_a_link_into_what_is_folded_unfolds_it(page):
    page.ask("location.hash = '#laws'")
    assert (
        page.ask("new Promise(done => setTimeout(() => done(document.getElementById('laws').open), 50))")
        is True
    )


def test_on_paper_everything_is_unfolded_and_nothing_scrolls(page, tmp_path):
    panels = drawn(page)
    page.call("Emulation.setEmulatedMedia", media="print")
    page.ask("dispatchEvent(new Event('beforeprint'))")
    assert page.ask("document.querySelectorAll('details:not([open])').length") == 0
    scrolls = "[...document.querySelectorAll('.scroll')].filter(each => getComputedStyle(each).overflowY !== 'visible').length"
    assert page.ask(scrolls) == 0
    assert page.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    page.ask("dispatchEvent(new Event('afterprint'))")
    assert page.ask("document.querySelectorAll('details:not([open])').length") > 0
    assert page.ask("document.querySelectorAll('.chart svg').length") == panels
    page.paper(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
