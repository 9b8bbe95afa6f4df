"""``python -m bench.supervise``: ``antiphon worker`` with the settings of its environment."""

import asyncio

from antiphon.telemetry import set_up_logging
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.supervisor import Supervisor

if __name__ == "__main__":
    settings = Settings.load()
    set_up_logging(settings.log_level)
    asyncio.run(Supervisor(settings).run())
