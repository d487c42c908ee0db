# --- added to matplotlib/font_manager.py when the sandbox's image is built -------------------------------------------
# A figure keeps its Chinese, Japanese and Korean text whatever replaces the font settings (seaborn.set_theme,
# plt.style.use): every lookup ends in two more fonts, which are asked only for glyphs that the others lack.
_FALLBACK_FONTS = (
    "/usr/share/fonts/agent_tools/DroidSansFallbackFull.ttf",
    "/usr/share/fonts/agent_tools/NanumSquareR.ttf",
)
_find_fonts_without_fallback = FontManager._find_fonts_by_props


def _find_fonts_with_fallback(self, prop, fontext="ttf", *args, **kwargs):
    paths = _find_fonts_without_fallback(self, prop, fontext, *args, **kwargs)
    if fontext == "ttf" and paths:
        there = {str(path) for path in paths}
        more = [font for font in _FALLBACK_FONTS if font not in there]
        paths += [FontPath(font, 0) for font in more] if "FontPath" in globals() else more
    return paths


FontManager._find_fonts_by_props = _find_fonts_with_fallback
