"""How well a colour is seen on another (WCAG 2.2). A colour is its red, green and blue as fractions."""

Colour = tuple[float, ...]


def luminance(colour: Colour) -> float:
    """Relative luminance."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
