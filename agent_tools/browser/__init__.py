"""Parts that pages in a browser share: outputs as JSON, readers in JavaScript, and libraries that draw figures."""
