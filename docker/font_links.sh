#!/bin/sh
# Gives the image's fonts the names and places by which code opens font files: Pillow's and reportlab's lookups by file
# name, and the paths of Debian's packages. font_fallback.py does the same for names of fonts in matplotlib.
set -eu
top=/usr/share/fonts
ours=$top/agent_tools
dejavu=$(echo /opt/kernel/lib/python3*/site-packages/matplotlib/mpl-data/fonts/ttf)

mkdir -p $top/truetype $top/opentype/noto
cd $top/truetype
mkdir dejavu liberation msttcorefonts droid wqy noto
for font in "$dejavu"/DejaVu*.ttf; do ln -s "$font" dejavu/; done
for font in $ours/Liberation*.ttf; do ln -s "$font" liberation/; done
ln -s liberation liberation2
ln -s $ours/DroidSansFallbackFull.ttf droid/
for font in $ours/NotoSans*.ttf; do ln -s "$font" noto/; done

family() { # family "stem of Liberation" "stems"...: the four styles, as Windows names their files
    liberation=$1
    shift
    for stem in "$@"; do
        for style in :Regular bd:Bold i:Italic bi:BoldItalic; do
            ln -s "$ours/$liberation-${style#*:}.ttf" "msttcorefonts/$stem${style%%:*}.ttf"
        done
    done
}
family LiberationSans arial helvetica calibri verdana tahoma segoeui
family LiberationSerif times georgia
family LiberationMono cour consola
for style in :Regular _Bold:Bold _Italic:Italic _Bold_Italic:BoldItalic; do
    for pair in Arial:Sans Helvetica:Sans Times_New_Roman:Serif Courier_New:Mono; do
        ln -s "$ours/Liberation${pair#*:}-${style#*:}.ttf" "msttcorefonts/${pair%%:*}${style%%:*}.ttf"
    done
done

cjk=$ours/DroidSansFallbackFull.ttf
for name in wqy-zenhei.ttc wqy-microhei.ttc; do ln -s $cjk wqy/$name; done
for name in simhei.ttf SimHei.ttf simsun.ttc SimSun.ttf msyh.ttc msyhbd.ttc simkai.ttf simfang.ttf; do ln -s $cjk msttcorefonts/$name; done
cd ../opentype/noto
for style in Regular Bold Light Medium Black; do
    for face in Sans Serif; do ln -s $cjk Noto${face}CJK-$style.ttc; done
    for script in sc tc jp; do ln -s $cjk NotoSansCJK$script-$style.otf; done
done
for name in NotoSansSC-Regular.otf NotoSansTC-Regular.otf NotoSansJP-Regular.otf; do ln -s $cjk $name; done
ln -s $ours/NanumSquareR.ttf NotoSansCJKkr-Regular.otf
