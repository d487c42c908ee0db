"""The newer name of ace_tools."""

from ace_tools import display_chart_to_user as display_chart_to_user
from ace_tools import display_dataframe_to_user as display_dataframe_to_user
from ace_tools import log_exception as log_exception
from ace_tools import log_matplotlib_img_fallback as log_matplotlib_img_fallback
