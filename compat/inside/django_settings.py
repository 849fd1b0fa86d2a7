"""Django's test settings, with databases in files: in memory no VFS is in the way."""

DATABASES = {
    alias: {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{alias}.sqlite3",
        "TEST": {"NAME": f"test_{alias}.sqlite3"},
    }
    for alias in ("default", "other")
}
SECRET_KEY = "of tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
