"""Charts of arrays and texts, as SVG text or as PNG files; nothing here knows about studies.

`svg` draws charts with axes, `svg_grids` heat maps and maps of points, `png` pictures with
matplotlib. `axis` and `svg_elements` hold what the SVG charts share. `projection` lays vectors out
on a plane.
"""
