import os

SECRET_KEY = "only of this example"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", "shop.db"), "OPTIONS": {"timeout": 30}}}
USE_TZ = True
