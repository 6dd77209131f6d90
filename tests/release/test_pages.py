"""``dpdask show URL --html``: five kinds of releases as pages."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

import dpdask
from dpdask import PrivacyBudget
from dpdask.cli import main
from dpdask.releases.read import read_card
from dpdask.views.page import release_page
from tests.support.workspace import Workspace

RECORDS = 500


class Parsed(HTMLParser):
    """The text of a page, the cells of its tables, and whatever it refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        self.references += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "data")
        ]

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.tags and self.tags[-1] in ("td", "th") and self.rows:
            self.rows[-1].append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    space = Workspace(tmp_path)
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=50, delta=1e-5))
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 3, RECORDS)
    xr.Dataset(
        {
            "x": (("person", "day"), rng.normal(0.5, 0.1, (RECORDS, 90)), {"units": "kWh"}),
            "few": (("person", "hour"), rng.normal(0.5, 0.1, (RECORDS, 4))),
            "images": (("person", "row", "column"), rng.random((RECORDS, 5, 7))),
            "age": (("person",), rng.uniform(0, 90, RECORDS)),
            "height": (("person",), rng.uniform(100, 200, RECORDS)),
            "group": (("person",), groups),
        },
        coords={"day": np.datetime64("2025-01-01") + np.arange(90)},
    ).to_zarr(tmp_path / "source.zarr", consolidated=False)
    return space


def _page(space: Workspace, **changes: Any) -> tuple[Parsed, xr.Dataset, str]:
    unit = {"record_dim": "person", "ranges": [0, 1], "missing": "center"}
    space.release(**{"privacy_unit": unit, "query": "mean", **changes})
    url = str(space.folder / "out.zarr")
    path = space.folder / "page.html"
    result = CliRunner().invoke(main, ["show", url, "--html", str(path)])
    assert result.exit_code == 0, result.output
    page = path.read_text()
    return Parsed(page), dpdask.open_release_dataset(url), page


def _source(space: Workspace, array: str | None) -> dict[str, Any]:
    named = {} if array is None else {"array": array}
    return {"url": str(space.folder / "source.zarr"), **named}


def test_a_line_shows_every_number_with_its_band(space: Workspace) -> None:
    publish = {"coordinates": ["day"], "attributes": ["units"]}
    parsed, dataset, page = _page(space, source=_source(space, "x"), publish=publish)
    rows = [row for row in parsed.rows if row and row[0].startswith("2025-")]
    assert [row[0] for row in rows] == [str(day)[:10] for day in dataset.day.values]
    assert np.allclose([float(row[1]) for row in rows], dataset["data"].values, rtol=1e-7)
    std = float(dataset["data_noise_std"])
    assert all(abs(float(row[2][1:]) / (1.959964 * std) - 1) < 0.005 for row in rows)
    assert 'class="band"' in page
    assert "kWh" in parsed.words


def test_the_band_drawn_is_196_standard_deviations_high(space: Workspace) -> None:
    _, dataset, page = _page(space, source=_source(space, "x"))
    points = [
        np.array([[float(v) for v in point.split(",")] for point in found.split()])
        for found in re.findall(r'points="([^"]+)"', page)
    ]
    band, line = points
    count = len(line)
    values = dataset["data"].values
    scale = np.ptp(line[:, 1]) / np.ptp(values)  # of the drawing, per unit
    half = (band[count:, 1][::-1] - band[:count, 1]) / 2
    assert np.allclose(half / scale, 1.959964 * float(dataset["data_noise_std"]), rtol=0.05)
    assert np.allclose(line[:, 1].max() - line[:, 1], (values - values.min()) * scale, atol=0.11)


def test_few_entries_are_bars(space: Workspace) -> None:
    parsed, dataset, page = _page(space, source=_source(space, "few"))
    assert page.count('class="bar"') == page.count('class="whisker"') == 4
    values = [float(row[1]) for row in parsed.rows if row and row[0] in "0123"]
    assert np.allclose(values, dataset["data"].values, rtol=1e-7)


def test_groups_are_one_drawing_each(space: Workspace) -> None:
    query = {"name": "mean", "by": {"array": "group", "groups": [0, 1, 2]}}
    parsed, _, page = _page(space, source=_source(space, "x"), query=query)
    assert page.count("<svg") == 3
    assert "group 0" in parsed.words
    assert "group 2" in parsed.words
    assert "1.96 times its data_noise_std" in parsed.words


def test_counts_in_two_dimensions_are_a_map(space: Workspace) -> None:
    edges = {
        "age": {"low": 0, "high": 90, "bins": 9},
        "height": {"low": 100, "high": 200, "bins": 10},
    }
    _, dataset, page = _page(
        space,
        source=_source(space, None),
        privacy_unit={"record_dim": "person"},
        query={"name": "histogram", "edges": edges},
    )
    picture = re.search(r'base64,([^"]+)"', page)
    assert picture is not None
    pixels = _pixels(base64.b64decode(picture[1]))
    values = dataset["data"].values
    assert pixels.shape == (*values.shape, 3)
    darkest, brightest = np.unravel_index([values.argmin(), values.argmax()], values.shape)
    lightness = pixels.astype(float).sum(axis=-1)
    assert lightness[darkest[0], brightest[0]] == lightness.min()
    assert lightness[darkest[1], brightest[1]] == lightness.max()


def _pixels(png: bytes) -> np.ndarray[Any, Any]:
    """Return the pixels of an RGB picture without filters."""
    width, height = struct.unpack(">II", png[16:24])
    length = struct.unpack(">I", png[33:37])[0]
    rows = zlib.decompress(png[41 : 41 + length])
    return (
        np.frombuffer(rows, np.uint8)
        .reshape(height, 1 + 3 * width)[:, 1:]
        .reshape(height, width, 3)
    )


def test_images_are_pictures_by_group(space: Workspace) -> None:
    query = {"name": "mean", "by": {"array": "group", "groups": [0, 1, 2]}}
    parsed, _, _ = _page(space, source=_source(space, "images"), query=query)
    assert parsed.words.count("group ") >= 3
    assert sum(reference.startswith("data:image/png") for reference in parsed.references) == 4


def test_one_number_is_a_number(space: Workspace) -> None:
    parsed, dataset, _ = _page(space, source=_source(space, "age"), privacy_unit=_ages())
    assert f"{float(dataset['data'].values[0]):.6g}" in parsed.words


def _ages() -> dict[str, Any]:
    return {"record_dim": "person", "ranges": [0, 90], "missing": "center"}


def test_a_page_loads_nothing_and_runs_nothing(space: Workspace) -> None:
    parsed, _, page = _page(space, source=_source(space, "x"))
    assert all(reference.startswith("data:") for reference in parsed.references)
    assert not {"script", "link", "iframe", "object", "form"} & set(parsed.tags)
    assert "url(" not in page
    assert "@import" not in page


def test_text_of_a_curator_is_text(space: Workspace) -> None:
    publish = {"description": "<script>alert('a')</script>"}
    budget = {"ledger": space.ledger_url, "dataset": "people", "curator": "<b>bold</b>"}
    parsed, _, page = _page(space, source=_source(space, "few"), publish=publish, budget=budget)
    assert "script" not in parsed.tags
    assert "b" not in parsed.tags
    assert "&lt;script&gt;" in page


def test_files_are_called_intact_only_after_a_verification(space: Workspace) -> None:
    parsed, dataset, _ = _page(space, source=_source(space, "few"))
    assert "Files intact" in parsed.words
    url = str(space.folder / "out.zarr")
    unverified = release_page(dataset, read_card(url), url, intact=False)
    assert "Files intact" not in unverified


def test_what_does_not_verify_gets_no_page(space: Workspace) -> None:
    _page(space, source=_source(space, "few"))
    chunk = space.folder / "out.zarr" / "data" / "c.0"
    damaged = bytearray(chunk.read_bytes())
    damaged[3] ^= 1
    chunk.write_bytes(bytes(damaged))
    path = space.folder / "second.html"
    out = str(space.folder / "out.zarr")
    result = CliRunner().invoke(main, ["show", out, "--html", str(path)])
    assert result.exit_code == 4
    assert not path.exists()


def test_a_page_that_cannot_be_written_is_one_sentence(space: Workspace) -> None:
    _page(space, source=_source(space, "few"))
    path = space.folder / "missing" / "page.html"
    out = str(space.folder / "out.zarr")
    result = CliRunner().invoke(main, ["show", out, "--html", str(path)])
    assert result.exit_code == 2
    assert "cannot be written" in result.output


def test_what_is_drawn_of_a_long_line_is_told(space: Workspace) -> None:
    values = np.random.default_rng(2).random((20, 5000))
    xr.Dataset({"x": (("person", "time"), values)}).to_zarr(space.folder / "long.zarr")
    source = {"url": str(space.folder / "long.zarr"), "array": "x"}
    parsed, dataset, _ = _page(space, source=source)
    assert "every 5th of 5,000 along time" in parsed.words
    first = [row for row in parsed.rows if row and row[0] == "5"]
    assert float(first[0][1]) == pytest.approx(float(dataset["data"][5]), rel=1e-7)


def test_several_variables_are_on_one_page(space: Workspace) -> None:
    source = {"url": str(space.folder / "source.zarr"), "arrays": {"x": {}, "few": {}}}
    parsed, _, _ = _page(space, source=source)
    assert "x: the numbers" in parsed.words
    assert "few: the numbers" in parsed.words
