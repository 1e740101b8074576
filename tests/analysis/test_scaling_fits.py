"""Tests of scaling_fits.py: fits to curves that follow a scaling law with noise."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from scaling.analysis import curves, scaling_fits
from scaling.analysis.estimate import Estimate
from scaling.analysis.scaling_fits import AMDAHL, GUSTAFSON, UNIVERSAL
from scaling.analysis.timings import pool_processes

pytestmark = pytest.mark.thin(8, "thorough")

DOUBLING, ONE_TO_EIGHT = tuple(2**i for i in range(8)), tuple(range(1, 9))
TRIALS = 100
SAMPLES = 7


def seconds(law, parts, devices):
    """Return the time on `devices` devices of work that takes one second on one device."""
    first, second = (*parts, 0.0)[:2]
    if law == GUSTAFSON:
        return devices / (devices - first * (devices - 1))
    return (1 + first * (devices - 1) + second * devices * (devices - 1)) / devices


@pytest.fixture
def curve_of(make_record):
    """Return a function that makes a curve following a law; it is weak for Gustafson's law unless `kind` says otherwise."""

    def make(law, parts, devices, noise=None, jitter=None, kind=None):
        weak = (kind or ("weak" if law == GUSTAFSON else "strong")) == "weak"
        records = []
        for i, count in enumerate(devices):
            level = seconds(law, parts, count) * (count if weak and law == UNIVERSAL else 1)
            log_error = (0.0 if noise is None else noise[i]) + (
                np.zeros(SAMPLES) if jitter is None else jitter[i]
            )
            times = level * np.exp(log_error)
            points = 840 * 128 * (count if weak else 1)
            records.append(
                make_record(
                    devices=count, points=points, seconds=times.tolist(), flops=1e6, compulsory_bytes=1000
                )
            )
        (curve,) = curves.scaling_curves(pool_processes(records), ["weak" if weak else "strong"])
        return curve

    return make


def fit_of(curve, name):
    return next(law for law in scaling_fits.fit_laws(curve) if law.name == name)


FITS = [
    # law, its parts, device counts, maximum of the median half-width of each interval
    (AMDAHL, (0.05,), DOUBLING, (0.01,)),
    (AMDAHL, (0.05,), ONE_TO_EIGHT, (0.03,)),
    (UNIVERSAL, (0.01, 1e-3), DOUBLING, (0.02, 3e-4)),
    (GUSTAFSON, (0.05,), DOUBLING, (0.1,)),
]


@pytest.mark.default
@pytest.mark.parametrize("devices", [DOUBLING[:5], ONE_TO_EIGHT])
def test_law_is_selected_by_an_f_test_at_the_five_percent_level(curve_of, devices):
    """Compare with the F distribution of SciPy: the sums of squared residuals of nested models."""
    generator, selected = np.random.default_rng(7), []
    for _ in range(40):
        noise = 0.05 * generator.normal(size=len(devices))
        simple, universal = scaling_fits.fit_laws(curve_of(UNIVERSAL, (0.05, 6e-3), devices, noise))
        freedom = len(devices) - 3
        squares = [simple.residual**2 * (freedom + 1), universal.residual**2 * freedom]
        p = stats.f.sf((squares[0] - squares[1]) / (squares[1] / freedom), 1, freedom)
        assert universal.best is bool(p < 0.05) and simple.best is not universal.best
        selected.append(universal.best)
    assert 3 < sum(selected) < 38  # both laws are selected


@pytest.mark.parametrize("law, parts, devices, max_half_width", FITS)
def test_intervals_cover_the_true_parts_under_five_percent_noise_per_device_count(
    curve_of, law, parts, devices, max_half_width
):
    generator = np.random.default_rng(len(devices))
    covered, half_widths = np.zeros(len(parts)), []
    for _ in range(TRIALS):
        fit = fit_of(curve_of(law, parts, devices, 0.05 * generator.normal(size=len(devices))), law)
        covered += [
            estimate.low <= part <= estimate.high
            for estimate, part in zip(fit.parameters.values(), parts, strict=True)
        ]
        half_widths.append([(estimate.high - estimate.low) / 2 for estimate in fit.parameters.values()])
    assert (covered >= 0.9 * TRIALS).all(), covered
    assert (np.median(half_widths, axis=0) <= max_half_width).all(), np.median(half_widths, axis=0)


def test_noise_of_single_samples_gives_narrower_intervals(curve_of):
    generator, covered, half_widths = np.random.default_rng(2), 0, []
    for _ in range(TRIALS // 2):
        fit = fit_of(
            curve_of(AMDAHL, (0.2,), ONE_TO_EIGHT, jitter=0.05 * generator.normal(size=(8, SAMPLES))), AMDAHL
        )
        covered += fit.parameters["serial"].low <= 0.2 <= fit.parameters["serial"].high
        half_widths.append((fit.parameters["serial"].high - fit.parameters["serial"].low) / 2)
    assert covered >= 0.9 * TRIALS / 2 and np.median(half_widths) <= 0.025


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_exact_curve_recovers_the_parts_the_limit_and_the_peak(curve_of, kind):
    fit = fit_of(curve_of(UNIVERSAL, (0.04, 1e-4), DOUBLING, kind=kind), UNIVERSAL)
    assert [part.value for part in fit.parameters.values()] == pytest.approx([0.04, 1e-4], rel=1e-4)
    assert fit.best and fit.seconds == pytest.approx(1) and fit.residual < 1e-6
    assert fit.peak == pytest.approx(math.sqrt(0.96 / 1e-4), rel=1e-4)
    assert fit.limit == fit.speedup(fit.peak) > max(fit.speedup(fit.peak - 5), fit.speedup(fit.peak + 5))
    assert fit.speedup(64) == pytest.approx(1 / seconds(UNIVERSAL, (0.04, 1e-4), 64), rel=1e-4)


@pytest.mark.parametrize(
    "name, parts, low, high",
    [
        (AMDAHL, {"serial": Estimate(0.02, 0.01, 0.04)}, 25, 100),
        (AMDAHL, {"serial": Estimate(0.02, 0.0, 0.04)}, 25, math.inf),
        (
            UNIVERSAL,
            {"contention": Estimate(0.1, 0.05, 0.2), "coherency": Estimate(1e-3, 0.0, 0.2)},
            1 / (0.5 + 0.5 * 0.2 + 0.2),  # on two devices, where 0.2 and 0.2 have their peak
            20,
        ),
    ],
)
def test_limit_has_an_interval_from_those_of_the_parts(name, parts, low, high, curve_of):
    curve = curve_of(AMDAHL, (0.1,), (1, 2))
    universal = {"contention": next(iter(parts.values())), "coherency": Estimate(0.0, 0.0, 0.0)}
    general = scaling_fits.ScalingFit(curve, UNIVERSAL, universal, 1.0, 0.01, best=False)
    fit = scaling_fits.ScalingFit(curve, name, parts, 1.0, 0.01, True, general if name == AMDAHL else None)
    assert fit.limit_estimate == pytest.approx((fit.limit, low, high))


def test_limit_of_a_simple_law_includes_the_maximum_that_a_few_device_counts_do_not_exclude(curve_of):
    generator, claimed, wrong = np.random.default_rng(5), 0, 0
    truth = max(1 / seconds(UNIVERSAL, (0.03, 0.002), n) for n in range(1, 99))  # 8.6, on 22 devices
    for _ in range(TRIALS):
        fits = scaling_fits.fit_laws(
            curve_of(UNIVERSAL, (0.03, 0.002), (1, 2, 4, 8), 0.01 * generator.normal(size=4))
        )
        limit = next(fit for fit in fits if fit.best).limit_estimate
        is_claimed = limit is not None and limit.is_determined
        claimed += is_claimed
        wrong += is_claimed and not limit.low <= truth <= limit.high
    assert wrong <= TRIALS / 20 < claimed


def test_three_device_counts_have_no_limit(curve_of):
    fit = fit_of(curve_of(AMDAHL, (0.1,), (1, 2, 4)), AMDAHL)
    assert fit.best and fit.limit and fit.limit_estimate is None


def test_times_of_empty_calls_have_no_law(curve_of):
    curve = curve_of(AMDAHL, (0.1,), DOUBLING)
    empty_call = 1.01 * curve.points[3].seconds

    def with_empty_call(point):
        records = [dataclasses.replace(record, floor_seconds=empty_call) for record in point.timing.records]
        return dataclasses.replace(point, timing=dataclasses.replace(point.timing, records=tuple(records)))

    points = tuple(map(with_empty_call, curve.points))
    # Three times are longer than an empty call, which are enough for Amdahl's law alone.
    assert [law.name for law in scaling_fits.fit_laws(dataclasses.replace(curve, points=points))] == [AMDAHL]
    assert scaling_fits.fit_laws(dataclasses.replace(curve, points=points[1:])) == ()


def test_amdahl_limit_is_one_over_the_serial_part_and_gustafson_has_no_limit(curve_of):
    amdahl = fit_of(curve_of(AMDAHL, (0.05,), DOUBLING), AMDAHL)
    assert (amdahl.limit, amdahl.peak, amdahl.speedup(1)) == (pytest.approx(20, rel=1e-4), None, 1)
    gustafson = fit_of(curve_of(GUSTAFSON, (0.05,), DOUBLING), GUSTAFSON)
    assert (gustafson.limit, gustafson.peak) == (None, None)
    assert gustafson.speedup(128) == pytest.approx(128 - 0.05 * 127, rel=1e-4)
    perfect = fit_of(curve_of(UNIVERSAL, (0.0, 0.0), DOUBLING), UNIVERSAL)
    assert perfect.peak is None or perfect.peak > 1e4


@pytest.mark.parametrize(
    ("law", "parts"), [(AMDAHL, (0.05,)), (UNIVERSAL, (0.02, 0.001)), (GUSTAFSON, (0.1,))]
)
def test_true_law_is_selected_in_at_least_90_percent_of_trials(curve_of, law, parts):
    generator = np.random.default_rng(3)
    best = [
        fit_of(curve_of(law, parts, DOUBLING, 0.05 * generator.normal(size=8)), law).best for _ in range(50)
    ]
    assert sum(best) >= 45


def test_exactly_one_law_is_the_best(curve_of):
    for devices in ((1, 2, 4), (1, 2, 3, 4), ONE_TO_EIGHT):
        assert sum(law.best for law in scaling_fits.fit_laws(curve_of(UNIVERSAL, (0.1, 0.0), devices))) == 1


@pytest.mark.parametrize(
    "devices, names",
    [((1, 2), []), ((1, 2, 4), [AMDAHL]), ((2, 4, 8), [AMDAHL]), ((1, 2, 4, 8), [AMDAHL, UNIVERSAL])],
)
def test_law_needs_more_device_counts_than_parameters(curve_of, devices, names):
    assert [law.name for law in scaling_fits.fit_laws(curve_of(AMDAHL, (0.1,), devices))] == names


def test_amdahl_is_fitted_to_strong_and_gustafson_to_weak_curves(curve_of):
    expected = {AMDAHL, UNIVERSAL}
    assert {law.name for law in scaling_fits.fit_laws(curve_of(AMDAHL, (0.1,), ONE_TO_EIGHT))} == expected
    expected = {GUSTAFSON, UNIVERSAL}
    assert {law.name for law in scaling_fits.fit_laws(curve_of(GUSTAFSON, (0.1,), ONE_TO_EIGHT))} == expected


def test_superlinear_speedup_has_zero_serial_part_and_an_interval(curve_of):
    fit = fit_of(curve_of(AMDAHL, (0.0,), ONE_TO_EIGHT, noise=-0.1 * np.log(ONE_TO_EIGHT)), AMDAHL)
    serial = fit.parameters["serial"]
    assert (serial.value, serial.low) == (0, 0) and serial.high > 0
    assert fit.limit is None


def test_very_small_parts_are_recovered_on_thousands_of_devices(curve_of):
    counts = tuple(2**i for i in range(13))
    noise = 0.02 * np.random.default_rng(6).normal(size=13)
    fit = fit_of(curve_of(UNIVERSAL, (1e-4, 1e-7), counts, noise), UNIVERSAL)
    contention, coherency = fit.parameters.values()
    assert 0 < contention.low < 1e-4 < contention.high < 2e-4
    assert 0 < coherency.low < 1e-7 < coherency.high < 2e-7


@pytest.mark.parametrize("devices", [(1, 2, 4, 8), (1, 2, 4, 8, 16)])
def test_simpler_law_is_selected_on_few_device_counts_unless_it_fits_badly(curve_of, devices):
    noise = 0.002 * np.random.default_rng(2).normal(size=len(devices))
    # More devices take longer, which Amdahl's law cannot describe.
    slower = curve_of(UNIVERSAL, (0.1, 0.4), devices, noise)
    expected = [(AMDAHL, False), (UNIVERSAL, True)]
    assert [(law.name, law.best) for law in scaling_fits.fit_laws(slower)] == expected
    assert fit_of(curve_of(AMDAHL, (0.1,), devices, noise), AMDAHL).best


def test_zero_coherency_has_no_peak(curve_of):
    fit = fit_of(curve_of(AMDAHL, (0.0,), (1, 2, 4, 8), noise=-0.1 * np.log((1, 2, 4, 8))), UNIVERSAL)
    assert fit.parameters["coherency"].value == 0 and fit.peak is None and fit.limit is None
