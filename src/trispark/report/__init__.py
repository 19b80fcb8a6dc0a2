"""Reports of trials and campaigns: one self-contained HTML file, or the same content as Markdown, made from records.

`sources` finds and checks the records, `trial`, `ranks`, `raw` and `build` turn them into the plain parts of `page`,
and `render` writes those through the templates of templates/report. Nothing in a report is taken from a clock or a
node, so the same records give the same bytes.
"""
