# --- added to matplotlib/font_manager.py when the sandbox's image is built -------------------------------------------
# A figure keeps its Chinese and Japanese text whatever replaces the font settings (seaborn.set_theme,
# plt.style.use): every lookup ends in one more font, which is asked only for glyphs that the others lack.
_FALLBACK_FONT = "/usr/share/fonts/agent_tools/DroidSansFallbackFull.ttf"
_find_fonts_without_fallback = FontManager._find_fonts_by_props


def _find_fonts_with_fallback(self, prop, fontext="ttf", *args, **kwargs):
    paths = _find_fonts_without_fallback(self, prop, fontext, *args, **kwargs)
    if fontext == "ttf" and paths and str(paths[-1]) != _FALLBACK_FONT:
        paths.append(FontPath(_FALLBACK_FONT, 0) if "FontPath" in globals() else _FALLBACK_FONT)
    return paths


FontManager._find_fonts_by_props = _find_fonts_with_fallback
