"""Names of modules and of the packages that have them. `scripts/try modules` compares them with the packages' wheels.

Only names whose package is known stand here: a package of the same name as a module may be anybody's.
"""

_SAME = (
    "accelerate aiofiles aiohttp aiosqlite akshare albumentations altair annoy anthropic apscheduler arch arrow "
    "arviz asyncpg attrs babel backoff backtesting backtrader baostock bashlex bcrypt bitarray black blinker "
    "bokeh boto3 botocore bottle cachetools cartopy catboost category_encoders cattrs celery certifi cffi chardet "
    "charset_normalizer chinese_calendar click cloudinary cmdstanpy cn2an cnlunar colorama colorlog "
    "confluent_kafka contourpy convertdate cryptography cssselect cvxopt cvxpy cython dash dask datasets "
    "dateparser deap deepdiff diskcache distributed django docker docopt docx2txt duckdb ebooklib editdistance "
    "elasticsearch emcee emoji empyrical eppy et_xmlfile evaluate ezdxf factor_analyzer fastapi fastparquet "
    "fasttext featuretools feedparser ffn filterpy fiona flask folium formulaic fsspec ftfy fuzzywuzzy gensim "
    "geopandas geopy googlemaps gpxpy gql gradio graphene graphviz gseapy gspread gym gymnasium h3 h5py hdbscan "
    "hmmlearn html2text html5lib httpx huggingface_hub humanize hypothesis icalendar igraph imagehash imageio "
    "imageio_ffmpeg img2pdf implicit inflect ipywidgets isodate itsdangerous janome jellyfish jiagu jieba joblib "
    "jsonlines jsonschema julius kaleido keras kneed konlpy langchain langdetect lazypredict leidenalg lenskit "
    "librosa lifelines lightgbm lightning linearmodels lmfit loguru lunardate lxml_html_clean lz4 mapclassify "
    "markdown markdown2 markdownify markitdown marshmallow mdtraj memory_profiler meteostat mido mistune mizani "
    "mlflow mlxtend mne moviepy mplcursors mplfinance mpmath msgpack music21 nashpy nba_api nbformat neo4j nibabel "
    "nilearn nltk numba numexpr numpy_financial obspy openai opencc optuna orjson ortools osmnx owslib "
    "pandas_datareader pandas_profiling pandas_ta pandasql pandera papermill paramiko parsel passlib patsy pdf2image "
    "pdfkit pdfplumber peewee pendulum pikepdf pingouin pint pkuseg plotly plotnine pmdarima polars pooch portalocker "
    "prettytable prince prompt_toolkit prophet psutil psycopg pulp py2neo pyautogui pybind11 pycountry pydantic "
    "pydicom pydot pydub pyecharts pyfiglet pyfolio pygame pygments pygraphviz pykalman pymc pymongo pymoo "
    "pymupdf pymysql pynput pyod pyodbc pypandoc pypdf pyperclip pypinyin pyproj pytesseract pytest "
    "python_multipart pytrends pytz pyvis pyvista pyzbar qrcode quantstats rank_bm25 rapidfuzz rasterio rdflib "
    "redis reportlab requests_cache requests_html requests_oauthlib rich rtree s3fs sacrebleu scapy "
    "scikit_posthocs scrapy selenium sentence_transformers sentencepiece setuptools shap shapely simplejson simpy "
    "skops sktime skyfield slack_sdk snowballstemmer soundfile spacy sqlalchemy sqlglot squarify "
    "stable_baselines3 starlette statsbombpy statsforecast streamlit stripe striprtf structlog suntime svglib "
    "svgpathtools svgwrite swifter tables tenacity tensorboard termcolor textblob textdistance textstat thefuzz "
    "thinc tifffile tika tiktoken timm toml tomli toolz trafilatura transformers trimesh tsfresh tslearn tushare "
    "tweepy typer tzlocal ujson unidecode unstructured us usaddress uvicorn uvloop vaderSentiment validators "
    "vectorbt vega_datasets wand weasyprint websockets werkzeug wordcloud wordfreq wrapt xarray xgboost xhtml2pdf "
    "xlrd xlwings xlwt xmltodict xpinyin xxhash yellowbrick yfinance youtube_dl yt_dlp zeep zhconv zstandard "
    "zxcvbn jax jaxlib open3d pyspark tensorflow torch torchaudio torchvision "
)
"""Modules of packages of the same name."""
_OTHER = (
    "Bio=biopython BioSQL=biopython Crypto=pycryptodome Cryptodome=pycryptodomex Cython=cython "
    "Levenshtein=levenshtein MeCab=mecab-python3 MySQLdb=mysqlclient OpenSSL=pyopenssl PIL=pillow PyPDF2=pypdf2 "
    "SALib=salib absl=absl-py alphalens=alphalens-reloaded attr=attrs barcode=python-barcode bs4=beautifulsoup4 "
    "bson=pymongo camelot=camelot-py cattr=cattrs community=python-louvain "
    "cv2=opencv-python-headless databricks=databricks-sdk dateutil=python-dateutil dns=dnspython docx=python-docx "
    "dotenv=python-dotenv faiss=faiss-cpu ffmpeg=ffmpeg-python fitz=pymupdf fontTools=fonttools fpdf=fpdf2 "
    "freetype=freetype-py git=gitpython googleapiclient=google-api-python-client gridfs=pymongo "
    "imblearn=imbalanced-learn jpype=jpype1 jwt=pyjwt kafka=kafka-python magic=python-magic "
    "multipart=python-multipart mysql=mysql-connector-python nacl=pynacl odf=odfpy paho=paho-mqtt "
    "pdfminer=pdfminer.six playhouse=peewee pptx=python-pptx psycopg2=psycopg2-binary pymupdf4llm=pymupdf "
    "pyro=pyro-ppl pywt=pywavelets pyximport=cython ruamel=ruamel.yaml scikitplot=scikit-plot serial=pyserial "
    "shapefile=pyshp skbio=scikit-bio skfuzzy=scikit-fuzzy skimage=scikit-image sklearn=scikit-learn "
    "skopt=scikit-optimize sksurv=scikit-survival slugify=python-slugify "
    "snowflake=snowflake-connector-python surprise=scikit-surprise tabula=tabula-py talib=ta-lib "
    "telegram=python-telegram-bot tiktoken_ext=tiktoken tlz=toolz tortoise=tortoise-orm umap=umap-learn "
    "vl_convert=vl-convert-python websocket=websocket-client wikipediaapi=wikipedia-api yaml=pyyaml zmq=pyzmq "
)
"""Modules of packages of another name."""
DISTRIBUTIONS = {
    **{name: name.lower().replace("_", "-") for name in _SAME.split()},
    **dict(pair.split("=") for pair in _OTHER.split()),
}
