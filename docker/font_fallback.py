# --- added to matplotlib/font_manager.py when the sandbox's image is built -------------------------------------------
# A figure keeps its text in all scripts whatever replaces the font settings (seaborn.set_theme, plt.style.use): every
# lookup ends in more fonts, which are asked only for glyphs that the others lack.
_FONTS = "/usr/share/fonts/agent_tools/"
_FALLBACK_FONTS = (
    str(fontManager.defaultFont["ttf"]),  # those below have no Latin letters, or not all signs
    _FONTS + "DroidSansFallbackFull.ttf",
    _FONTS + "NanumSquareR.ttf",
    _FONTS + "NotoSansThai-Regular.ttf",
    _FONTS + "NotoSansDevanagari-Regular.ttf",
    _FONTS + "Symbola_hint.ttf",
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

# The usual names of fonts that are not here stand for those that are: of the same widths, or of the same script.
_STANDING_FOR = {
    "Liberation Sans": "Arial, Helvetica, Helvetica Neue, Arimo, Nimbus Sans",
    "Liberation Serif": "Times New Roman, Times, Tinos, Nimbus Roman",
    "Liberation Mono": "Courier New, Courier, Cousine, Nimbus Mono PS",
    "Droid Sans Fallback": (
        "SimHei, SimSun, NSimSun, SimKai, KaiTi, FangSong, YouYuan, LiSu, Microsoft YaHei, Microsoft YaHei UI,"
        " DengXian, Microsoft JhengHei, MingLiU, PMingLiU, STHeiti, STSong, STKaiti, STFangsong, STXihei, Heiti SC,"
        " Heiti TC, Songti SC, Kaiti SC, PingFang SC, PingFang TC, PingFang HK, Hiragino Sans GB, WenQuanYi Micro Hei,"
        " WenQuanYi Zen Hei, WenQuanYi Zen Hei Sharp, Noto Sans CJK SC, Noto Sans CJK TC, Noto Sans CJK HK,"
        " Noto Sans CJK JP, Noto Sans SC, Noto Sans TC, Noto Sans JP, Noto Serif CJK SC, Noto Serif CJK JP,"
        " Source Han Sans SC, Source Han Sans CN, Source Han Sans TC, Source Han Sans JP, Source Han Serif SC,"
        " AR PL UMing CN, AR PL UKai CN, Arial Unicode MS, MS Gothic, MS PGothic, MS Mincho, Yu Gothic, Meiryo,"
        " Hiragino Sans, Hiragino Kaku Gothic Pro, Hiragino Maru Gothic Pro, IPAGothic, IPAexGothic, IPAPGothic,"
        " TakaoGothic, TakaoPGothic, VL Gothic, VL PGothic"
    ),
    "NanumSquare": (
        "NanumGothic, NanumBarunGothic, NanumMyeongjo, Malgun Gothic, AppleGothic, Apple SD Gothic Neo, Gulim, Dotum,"
        " Batang, Noto Sans CJK KR, Noto Sans KR"
    ),
    "Noto Sans Thai": "TH Sarabun New, Sarabun, Loma, Garuda",
    "Noto Sans Devanagari": "Mangal, Nirmala UI, Lohit Devanagari",
    "Symbola": "Noto Emoji, Noto Color Emoji, Segoe UI Emoji, Segoe UI Symbol, Apple Color Emoji",
}
for _entry in list(fontManager.ttflist):
    for _name in filter(None, _STANDING_FOR.get(_entry.name, "").split(", ")):
        fontManager.ttflist.append(dataclasses.replace(_entry, name=_name))
