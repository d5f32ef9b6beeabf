"""The sizes of the screens on which the site is read."""

PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1280, "height": 900}
