"""What laws.py finds of curves that follow a law, with noise, and of points whose serial fraction is known."""

import math

import numpy as np
import pytest

from scaling.analysis import curves, scaling_fits
from scaling.analysis.ratios import Estimate
from scaling.analysis.scaling_fits import AMDAHL, GUSTAFSON, UNIVERSAL

pytestmark = pytest.mark.thin(8, "contract")

DOUBLING, EIGHT = tuple(2**i for i in range(8)), tuple(range(1, 9))
TRIALS = 100
SAMPLES = 7


def seconds(law, parts, devices):
    """The time on so many devices, of one second's work on one."""
    first, second = (*parts, 0.0)[:2]
    if law == GUSTAFSON:
        return devices / (devices - first * (devices - 1))
    return (1 + first * (devices - 1) + second * devices * (devices - 1)) / devices


@pytest.fixture
def curve_of(make_record):
    """The curve of these times, each of so many samples; a weak one where the law is Gustafson's."""

    def make(law, parts, devices, noise=None, jitter=None, kind=None):
        weak = (kind or ("weak" if law == GUSTAFSON else "strong")) == "weak"
        records = []
        for i, count in enumerate(devices):
            level = seconds(law, parts, count) * (count if weak and law == UNIVERSAL else 1)
            off = (0.0 if noise is None else noise[i]) + (np.zeros(SAMPLES) if jitter is None else jitter[i])
            times = level * np.exp(off)
            points = 840 * 128 * (count if weak else 1)
            records.append(
                make_record(
                    devices=count, points=points, seconds=times.tolist(), flops=1e6, compulsory_bytes=1000
                )
            )
        (curve,) = curves.scaling_curves(records, ["weak" if weak else "strong"])
        return curve

    return make


def law_of(curve, name):
    return next(law for law in scaling_fits.fit_laws(curve) if law.name == name)


SETTINGS = [
    # law, its parts, device counts, the most that half an interval may be in the median
    (AMDAHL, (0.0,), DOUBLING, (0.002,)),
    (AMDAHL, (0.05,), DOUBLING, (0.01,)),
    (AMDAHL, (0.15,), DOUBLING, (0.02,)),
    (AMDAHL, (0.05,), EIGHT, (0.03,)),
    (UNIVERSAL, (0.05, 1e-4), DOUBLING, (0.02, 2e-4)),
    (UNIVERSAL, (0.01, 1e-3), DOUBLING, (0.02, 3e-4)),
    (UNIVERSAL, (0.05, 0.0), DOUBLING, (0.02, 1e-4)),
    (GUSTAFSON, (0.05,), DOUBLING, (0.1,)),
]


@pytest.mark.parametrize("law, parts, devices, most", SETTINGS)
def test_curves_with_noise_of_five_percent_give_back_the_parts_inside_their_intervals(
    curve_of, law, parts, devices, most
):
    generator = np.random.default_rng(len(devices))
    held, halves = np.zeros(len(parts)), []
    for _ in range(TRIALS):
        found = law_of(curve_of(law, parts, devices, 0.05 * generator.normal(size=len(devices))), law)
        held += [
            estimate.low <= part <= estimate.high
            for estimate, part in zip(found.parts.values(), parts, strict=True)
        ]
        halves.append([(estimate.high - estimate.low) / 2 for estimate in found.parts.values()])
    assert (held >= 0.9 * TRIALS).all(), held
    assert (np.median(halves, axis=0) <= most).all(), np.median(halves, axis=0)


def test_noise_on_every_sample_alone_is_known_far_better(curve_of):
    generator, held, halves = np.random.default_rng(2), 0, []
    for _ in range(TRIALS // 2):
        found = law_of(
            curve_of(AMDAHL, (0.2,), EIGHT, jitter=0.05 * generator.normal(size=(8, SAMPLES))), AMDAHL
        )
        held += found.parts["serial"].low <= 0.2 <= found.parts["serial"].high
        halves.append((found.parts["serial"].high - found.parts["serial"].low) / 2)
    assert held >= 0.9 * TRIALS / 2 and np.median(halves) <= 0.025


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_curve_that_follows_a_law_exactly_gives_back_its_parts_its_limit_and_its_peak(curve_of, kind):
    found = law_of(curve_of(UNIVERSAL, (0.04, 1e-4), DOUBLING, kind=kind), UNIVERSAL)
    assert [part.value for part in found.parts.values()] == pytest.approx([0.04, 1e-4], rel=1e-4)
    assert found.best and found.seconds == pytest.approx(1) and found.spread < 1e-6
    assert found.peak == pytest.approx(math.sqrt(0.96 / 1e-4), rel=1e-4)
    assert (
        found.limit
        == found.speedup(found.peak)
        > max(found.speedup(found.peak - 5), found.speedup(found.peak + 5))
    )
    assert found.speedup(64) == pytest.approx(1 / seconds(UNIVERSAL, (0.04, 1e-4), 64), rel=1e-4)


def test_amdahls_limit_is_one_over_the_serial_part_and_gustafsons_speedup_has_none(curve_of):
    one = law_of(curve_of(AMDAHL, (0.05,), DOUBLING), AMDAHL)
    assert (one.limit, one.peak, one.speedup(1)) == (pytest.approx(20, rel=1e-4), None, 1)
    other = law_of(curve_of(GUSTAFSON, (0.05,), DOUBLING), GUSTAFSON)
    assert (other.limit, other.peak) == (None, None) and other.speedup(128) == pytest.approx(
        128 - 0.05 * 127, rel=1e-4
    )
    perfect = law_of(curve_of(UNIVERSAL, (0.0, 0.0), DOUBLING), UNIVERSAL)
    assert perfect.peak is None or perfect.peak > 1e4


@pytest.mark.parametrize(
    ("law", "parts"), [(AMDAHL, (0.05,)), (UNIVERSAL, (0.02, 0.001)), (GUSTAFSON, (0.1,))]
)
def test_the_law_that_a_curve_follows_is_mostly_called_the_best(curve_of, law, parts):
    generator = np.random.default_rng(3)
    best = [
        law_of(curve_of(law, parts, DOUBLING, 0.05 * generator.normal(size=8)), law).best for _ in range(50)
    ]
    assert sum(best) >= 45


def test_exactly_one_of_the_laws_of_a_curve_is_the_best(curve_of):
    for devices in ((1, 2, 4), (1, 2, 3, 4), EIGHT):
        assert sum(law.best for law in scaling_fits.fit_laws(curve_of(UNIVERSAL, (0.1, 0.0), devices))) == 1


@pytest.mark.parametrize(
    "devices, names",
    [((1, 2), []), ((1, 2, 4), [AMDAHL]), ((2, 4, 8), [AMDAHL]), ((1, 2, 4, 8), [AMDAHL, UNIVERSAL])],
)
def test_a_law_takes_one_device_count_more_than_it_has_parameters(curve_of, devices, names):
    assert [law.name for law in scaling_fits.fit_laws(curve_of(AMDAHL, (0.1,), devices))] == names


def test_a_strong_curve_is_no_business_of_gustafsons_nor_a_weak_one_of_amdahls(curve_of):
    assert {law.name for law in scaling_fits.fit_laws(curve_of(AMDAHL, (0.1,), EIGHT))} == {AMDAHL, UNIVERSAL}
    assert {law.name for law in scaling_fits.fit_laws(curve_of(GUSTAFSON, (0.1,), EIGHT))} == {
        GUSTAFSON,
        UNIVERSAL,
    }


def test_more_than_ideal_speedup_has_no_serial_part_and_an_interval_all_the_same(curve_of):
    found = law_of(curve_of(AMDAHL, (0.0,), EIGHT, noise=-0.1 * np.log(EIGHT)), AMDAHL)
    assert (found.parts["serial"].value, found.parts["serial"].low) == (0, 0) and found.parts[
        "serial"
    ].high > 0
    assert found.limit is None


def test_parts_as_small_as_they_are_on_thousands_of_devices_are_found(curve_of):
    counts = tuple(2**i for i in range(13))
    noise = 0.02 * np.random.default_rng(6).normal(size=13)
    contention, coherency = law_of(curve_of(UNIVERSAL, (1e-4, 1e-7), counts, noise), UNIVERSAL).parts.values()
    assert 0 < contention.low < 1e-4 < contention.high < 2e-4
    assert 0 < coherency.low < 1e-7 < coherency.high < 2e-7


def test_the_serial_fraction_of_karp_and_flatt_is_that_of_amdahl(curve_of):
    generator = np.random.default_rng(4)
    curve = curve_of(AMDAHL, (0.1,), (1, 2, 4), jitter=0.01 * generator.normal(size=(3, SAMPLES)))
    assert scaling_fits.karp_flatt(curve.points[0]) is None
    for point in curve.points[1:]:
        found = scaling_fits.karp_flatt(point)
        assert found.low < found.value < found.high and found.value == pytest.approx(0.1, abs=0.05)
        amdahl = lambda part, d=point.devices: 1 / (part + (1 - part) / d)  # noqa: E731
        assert [amdahl(part) for part in found] == pytest.approx(
            [point.speedup, point.speedup_high, point.speedup_low]
        )
    (alone,) = curve_of(AMDAHL, (0.1,), (4,)).points
    assert scaling_fits.karp_flatt(alone) is None


@pytest.mark.parametrize("devices", [(1, 2, 4, 8), (1, 2, 4, 8, 16)])
def test_on_too_few_device_counts_for_aicc_the_simpler_law_stands_unless_it_is_plainly_wrong(
    curve_of, devices
):
    noise = 0.002 * np.random.default_rng(2).normal(size=len(devices))
    slower = curve_of(
        UNIVERSAL, (0.1, 0.4), devices, noise
    )  # more devices take longer, which Amdahl's law cannot say
    assert [(law.name, law.best) for law in scaling_fits.fit_laws(slower)] == [
        (AMDAHL, False),
        (UNIVERSAL, True),
    ]
    assert law_of(curve_of(AMDAHL, (0.1,), devices, noise), AMDAHL).best


def test_a_coherency_that_is_none_has_no_peak_beyond_every_machine(curve_of):
    found = law_of(curve_of(AMDAHL, (0.0,), (1, 2, 4, 8), noise=-0.1 * np.log((1, 2, 4, 8))), UNIVERSAL)
    assert found.parts["coherency"].value == 0 and found.peak is None and found.limit is None


@pytest.mark.parametrize(
    "name, parts, doubt",
    [
        (AMDAHL, {"serial": Estimate(0.1, 0.05, 0.2)}, ""),
        (AMDAHL, {"serial": Estimate(0.1, 0.0, 0.2)}, ", if there is a limit at all"),
        (AMDAHL, {"serial": Estimate(0.0, 0.0, 0.2)}, ""),
        (
            UNIVERSAL,
            {"contention": Estimate(0.1, 0.05, 0.2), "coherency": Estimate(1e-4, 0.0, 1e-3)},
            ", if there is a peak at all",
        ),
        (UNIVERSAL, {"contention": Estimate(0.1, 0.0, 0.2), "coherency": Estimate(1e-4, 1e-5, 1e-3)}, ""),
    ],
)
def test_a_limit_whose_part_might_be_none_is_told_with_doubt(name, parts, doubt):
    assert scaling_fits.ScalingFit(name, parts, 1.0, 0.01, best=True).doubt == doubt
