"""The published values, against numbers copied by hand from the papers."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from nearkin.report.published import Published, look_up


def test_all_values_are_there_and_are_numbers():
    rows = look_up()
    assert len(rows) == 1068
    assert Counter(row.paper for row in rows) == {"CCP": 403, "PROFS": 360, "MPA": 150, "VCPA": 83, "ISA": 72}
    for row in rows:
        assert isinstance(row, Published)
        assert math.isfinite(row.value)
        assert row.spread is None or row.spread > 0
        assert all((row.paper, row.table, row.method, row.backbone, row.protocol, row.dataset, row.metric))


def test_no_value_is_given_twice():
    keys = [(row.paper, row.table, row.method, row.dim, row.protocol, row.dataset, row.metric) for row in look_up()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (("CCP", "VI", "C2-CCP-L", "cars196", "MAP@R", "mlrc-ensemble"), 26.27),
        (("CCP", "VI", "ProxyAnchor", "cub", "P@1", "mlrc-mean"), 60.61),
        (("CCP", "V", "Triplet-CCP-L", "inshop", "P@R", "mlrc-ensemble"), 67.23),
        (("CCP", "IV", "C2-CCP-L", "cub", "R@1", "conventional"), 71.04),
        (("CCP", "III", "MS-CCP-L", "inshop", "R@1", "conventional"), 91.84),
        (("CCP", "I", "Triplet-CCP", "sop", "ksteps", "mlrc-mean"), 124),
        (("CCP", "fig2", "samples instead of proxies", "mnist", "MAP@R", "in-distribution"), 98.06),
        (("ISA", "1", "ProxyISA", "inshop", "R@1", "conventional"), 92.3),
        (("ISA", "3", "ProxyISA w+=1/E,w-=1/E", "cars196", "MAP@R", "conventional"), 16.3),
        (("PROFS", "1", "M-PROFS-HNCM", "sop", "R@1", "conventional"), 76.3),
        (("PROFS", "1", "Triplet-Semi", "cub", "NMI", "conventional"), 60.9),
        (("VCPA", "1", "VCPA", "cub", "R@8", "conventional"), 92.2),
        (("VCPA", "3", "VCPA 448px", "cub", "R@1", "conventional"), 77.7),
        (("VCPA", "text", "ProxyAnchor", "cub", "ms/batch of 180", "conventional"), 383),
        (("MPA", "4", "MPA-AP", "cub", "nDCG@8", "conventional"), 61.3),
        (("MPA", "6", "SoftTriple (rerun)", "sop", "nDCG@100", "conventional"), 70.7),
        (("MPA", "7", "MPA K=12", "cub", "R@1", "conventional"), 69.3),
    ],
)
def test_values_as_the_papers_print_them(wanted, value):
    paper, table, method, dataset, metric, protocol = wanted
    (found,) = look_up(paper=paper, table=table, method=method, dataset=dataset, metric=metric, protocol=protocol)
    assert found.value == value


def test_spreads_are_the_papers():
    (margin,) = look_up(paper="ISA", table="2", method="Margin", dataset="cub", metric="R@1")
    assert (margin.value, margin.spread) == (63.6, 0.5)
    (vcpa,) = look_up(paper="VCPA", table="4", method="VCPA (5 runs, standard error)", dataset="cars196", metric="R@8")
    assert (vcpa.value, vcpa.spread) == (97.31, 0.05)


def test_what_is_not_there():
    assert look_up(paper="MPA", table="99") == []


def test_the_caller_may_change_its_list():
    look_up().clear()
    assert len(look_up()) == 1068
