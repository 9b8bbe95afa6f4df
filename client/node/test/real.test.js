// Against a real gateway, worker and Valkey, which all suites share and kill.

import "./real/http.js";
import "./real/redis.js";
import "./real/pages.js";
