"""The page itself: one HTML document without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from dpdask.figures import number_text
from dpdask.releases.card import ReleaseCard
from dpdask.views.card_rows import card_rows
from dpdask.views.page.shown import Form, Panel, Shown, shown
from dpdask.views.page.style import STYLE
from dpdask.views.page.svg import bars, colour_scale, image, line, map_of
from dpdask.views.page.words import chips, meaning, ratio_of_95, usage
from dpdask.views.rows import Row, shape_text

__all__ = ["release_page"]

_ROWS = 400  # of the table of numbers
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def release_page(dataset: Any, card: ReleaseCard, url: str, *, intact: bool) -> str:
    """Return a release as one HTML page.

    Guarantee: it is made of published numbers and the card alone, loads nothing and runs nothing.

    Args:
        dataset: The release as :func:`dpdask.open_release_dataset` opens it.
        card: Its card.
        url: Where it is, for the reader.
        intact: Whether a verification of its files has just passed.
    """
    title = _title(card)
    variables = [_numbers(dataset, own) for own in card.each_variable()]
    body = [
        f"<header><h1>{escape(title)}</h1><p class='soft'>{escape(_subtitle(card))}</p></header>",
        _chips(card, intact),
        *variables,
        '<div class="pair">',
        _section("What this means", [meaning(card)]),
        _section("How to use it", usage(card), _snippet(card, url)),
        _section("What is public as it is", [_sentence(what) for what in card.unprotected]),
        _budget(card),
        "</div>",
        _details(card, url),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _title(card: ReleaseCard) -> str:
    attributes = card.released.attributes
    named = attributes.get("title") or card.description or attributes.get("long_name")
    return str(named or ", ".join(own.released.array for own in card.each_variable()))


def _subtitle(card: ReleaseCard) -> str:
    """Return what was released, in which unit, by whom and when."""
    parts = []
    for own in card.each_variable():
        released = own.released
        sizes = zip(released.dimension_names, released.shape, strict=True)
        inside = ", ".join(f"{name}: {size:,}" for name, size in sizes)
        units = released.attributes.get("units")
        parts.append(f"{released.array} ({inside})" + (f" in {units}" if units else ""))
    curator = [f"curator: {card.curator}"] if card.curator else []
    return " \N{MIDDLE DOT} ".join([*parts, *curator, card.reserved_at[:10]])


def _chips(card: ReleaseCard, intact: bool) -> str:
    items = "".join(
        f'<li class="{chip.kind}">{escape(chip.text)}</li>' for chip in chips(card, intact=intact)
    )
    return f'<ul class="chips">{items}</ul>'


def _numbers(dataset: Any, card: ReleaseCard) -> str:
    """Return one variable: its drawing, how far noise moves it, and its numbers as a table."""
    drawn = shown(dataset, card)
    ratio = ratio_of_95(card)
    name = card.released.array
    banded = ratio is not None and drawn.form in (Form.LINE, Form.BARS)
    heading = f"{name}: the numbers" + (", with the 95 % band of their noise" if banded else "")
    notes = " ".join([*drawn.notes, _caption(card, ratio)])
    return (
        f"<section><h2>{escape(heading)}</h2>{_drawing(drawn, ratio, name)}"
        f"<p class='soft'>{escape(notes)}</p>{_table(drawn, ratio)}</section>"
    )


def _caption(card: ReleaseCard, ratio: float | None) -> str:
    """Return how far noise moved the numbers, and that nothing else is in that."""
    if ratio is None:
        return "All numbers share one random radius of their noise, so one alone has no band."
    std = card.released.noise_std
    if std is not None and card.released.noise_std_range is None:
        within = f"{number_text(ratio * std)}"
    else:
        within = f"{ratio:.3g} times its {card.released.array}_noise_std"
    return (
        f"With probability 95 %, noise moved a number by less than {within}. That is noise only:"
        " neither what limiting every record changed, nor any error of the data, is in it."
    )


def _drawing(drawn: Shown, ratio: float | None, name: str) -> str:
    panels = drawn.panels
    if drawn.form is Form.NUMBER:
        return _number(panels[0], ratio)
    if drawn.form is Form.MAP:
        return map_of(panels[0], f"map of {name}")
    if drawn.form is Form.IMAGES:
        low = min(float(panel.values.min()) for panel in panels)
        high = max(float(panel.values.max()) for panel in panels)
        figures = (
            f"<figure>{image(panel.values, low, high, f'{name}, {panel.title}')}"
            f"<figcaption>{escape(panel.title)}</figcaption></figure>"
            for panel in panels
        )
        return f'<div class="images">{"".join(figures)}</div>{colour_scale(low, high)}'
    draw = bars if drawn.form is Form.BARS else line
    return "".join(
        (f"<h3>{escape(panel.title)}</h3>" if panel.title else "")
        + draw(panel, None if ratio is None else ratio * panel.std, f"{name} {panel.title}".strip())
        for panel in panels
    )


def _number(panel: Panel, ratio: float | None) -> str:
    reach = "" if ratio is None else f" \N{PLUS-MINUS SIGN} {number_text(float(ratio * panel.std))}"
    return f'<p class="number">{float(panel.values):.6g}{reach}</p>'


def _table(drawn: Shown, ratio: float | None) -> str:
    """Return the numbers of lines and bars as a table, for those who do not see a drawing."""
    if drawn.form not in (Form.LINE, Form.BARS):
        return ""
    axis = drawn.panels[0].axes[0]
    parts = len(drawn.panels) > 1
    headings = [*(["part"] if parts else []), axis.name, "value", *(["95 % within"] * bool(ratio))]
    lines = []
    for panel in drawn.panels:
        for index, label in enumerate(panel.axes[0].labels):
            cells = [panel.title] * parts + [label]
            figures = [f"{panel.values[index]:.8g}"]
            if ratio is not None:
                figures.append(f"\N{PLUS-MINUS SIGN}{number_text(float(ratio * panel.std[index]))}")
            lines.append(
                "".join(f"<td>{escape(cell)}</td>" for cell in cells)
                + "".join(f'<td class="figure">{figure}</td>' for figure in figures)
            )
    more = f"<p>The first {_ROWS} of {len(lines):,}.</p>" if len(lines) > _ROWS else ""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    rows = "".join(f"<tr>{cells}</tr>" for cells in lines[:_ROWS])
    return (
        "<details><summary>The numbers as a table</summary>"
        f'<div class="table" tabindex="0" role="region" aria-label="numbers"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}</details>"
    )


def _section(title: str, paragraphs: Sequence[str], further: str = "") -> str:
    texts = "".join(f"<p>{escape(text)}</p>" for text in paragraphs)
    return f"<section><h2>{escape(title)}</h2>{texts}{further}</section>"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _snippet(card: ReleaseCard, url: str) -> str:
    code = "\n".join(
        f'xarray.open_zarr("{url}")["{own.released.array}"]' for own in card.each_variable()
    )
    return f"<pre>{escape(code)}</pre>"


def _budget(card: ReleaseCard) -> str:
    composition = card.composition
    total, spent = composition.total, composition.cumulative_epsilon
    share = 100 * min(1.0, spent / total.epsilon)
    text = (
        f"epsilon {number_text(spent)} of {total.epsilon:g} spent at delta {total.delta:g}, up to"
        " and with this release"
    )
    gauge = (
        f'<div class="gauge" role="img" aria-label="{share:.0f} % spent">'
        f'<div style="width: {share:.1f}%"></div></div><p>{escape(text)}</p>'
    )
    return _section(f"Budget of dataset {composition.dataset}", [], gauge)


def _details(card: ReleaseCard, url: str) -> str:
    verify = f"dpdask verify {url}" + (" --trust curator.pub" if card.signed_by else "")
    year = card.reserved_at[:4]
    cite = (
        f"{card.curator or 'Unnamed curator'} ({year}). {_title(card)}. Release {card.release_id}."
    )
    rows = [*card_rows(card), *_software(card)]
    return (
        "<details><summary>Technical details: mechanism, grid, theorem, software, manifest, how to"
        f' verify, how to cite</summary><div class="table" tabindex="0" role="region"'
        f' aria-label="technical details"><table><tbody>{_rows(rows)}</tbody></table></div>'
        f"<h3>Verify it</h3><pre>{escape(verify)}</pre><h3>Cite it</h3><p>{escape(cite)}</p>"
        "</details>"
    )


def _software(card: ReleaseCard) -> list[Row]:
    versions = ", ".join(f"{name} {version}" for name, version in card.software.items())
    chunks = shape_text(card.released.chunks)
    return [Row("software", versions), Row("chunks", f"{chunks} {card.released.dtype}")]


def _rows(rows: Iterable[Row]) -> str:
    return "".join(
        f'<tr><th scope="row">{escape(row.label)}</th><td>{escape(row.value)}</td></tr>'
        for row in rows
    )
