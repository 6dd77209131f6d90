"""The style sheet of pages: light and dark, narrow and wide, screen and paper."""

__all__ = ["STYLE"]

STYLE = """
:root { --ink: #1a1d23; --soft: #565b66; --paper: #ffffff; --edge: #d7dae0; --fill: #eef1f6;
  --blue: #1f5fa8; --band: #b9d3ee; --good: #0b5e34; --good-fill: #e2f3e9; --bad: #9b1c1c;
  --bad-fill: #fbe5e5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e9ebef; --soft: #adb3bf; --paper: #15181d;
  --edge: #3a404a; --fill: #242932; --blue: #7db4f0; --band: #2c4766; --good: #8fdcae;
  --good-fill: #14361f; --bad: #f3a6a6; --bad-fill: #451a1a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.05rem; margin: 0 0 .4rem; }
h3 { font-size: .95rem; margin: .8rem 0 .2rem; font-weight: 600; }
p { margin: .3rem 0; }
a { color: var(--blue); }
.soft, figcaption { color: var(--soft); }
.chips { display: flex; flex-wrap: wrap; gap: .4rem;
  list-style: none; margin: .8rem 0; padding: 0; }
.chips li { border-radius: .7rem; padding: .15rem .7rem; background: var(--fill);
  overflow-wrap: anywhere; }
.chips .good { background: var(--good-fill); color: var(--good); font-weight: 600; }
.chips .bad { background: var(--bad-fill); color: var(--bad); font-weight: 600; }
section { border: 1px solid var(--edge); border-radius: .5rem; padding: 1rem; margin: 0 0 1rem; }
.pair { display: grid; gap: 1rem; margin-bottom: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.pair section { margin: 0; }
svg { width: 100%; height: auto; }
.rule { stroke: var(--edge); } .tick { fill: var(--soft); font-size: 13px; }
.band { fill: var(--band); } .line { fill: none; stroke: var(--blue); stroke-width: 1.5; }
.bar { fill: var(--blue); fill-opacity: .55; } .whisker { stroke: var(--ink); stroke-width: 1.5; }
.number { font-size: 2rem; font-weight: 600; }
figure { margin: 0; }
.pixels { image-rendering: pixelated; width: 100%; display: block; }
.map .pixels { max-height: 30rem; object-fit: fill; }
.map { max-width: 40rem; }
.scale { display: flex; align-items: center; gap: .6rem; max-width: 28rem; }
.scale .pixels { height: .8rem; }
.images { display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); }
.images figcaption { font-size: .85rem; }
.gauge { height: 1rem; border-radius: .5rem; background: var(--fill); overflow: hidden;
  border: 1px solid var(--edge); }
.gauge div { height: 100%; background: var(--blue); }
pre { background: var(--fill); padding: .6rem; border-radius: .4rem; font-size: .85rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid var(--edge); overflow-wrap: anywhere; }
td.figure { text-align: right; font-variant-numeric: tabular-nums; }
.table { overflow-x: auto; max-height: 26rem; overflow-y: auto; }
details { margin: 0 0 1rem; }
summary { cursor: pointer; font-weight: 600; }
summary:focus-visible, a:focus-visible, .table:focus-visible { outline: 2px solid var(--blue);
  outline-offset: 2px; }
@media print { :root { --ink: #000; --soft: #333; --paper: #fff; --edge: #999; --fill: #eee;
  --blue: #14467c; --band: #c5d9ee; --good: #000; --good-fill: #eee; }
  body { max-width: none; padding: 0; } section { break-inside: avoid; }
  .table { max-height: none; } }
"""
