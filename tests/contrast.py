"""How well a colour is seen on another (WCAG 2.2). A colour is its red, green and blue as fractions."""

Colour = tuple[float, ...]


def luminance(colour: Colour) -> float:
    """Relative luminance."""
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(colour: Colour) -> float:
    """Of OKLab, in which equal steps look equal (Ottosson 2020)."""
    red, green, blue = linear(colour)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return 0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short


def linear(colour: Colour) -> Colour:
    """Amounts of light, without the curve that sRGB stores them by."""
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)


def contrast(one: Colour, other: Colour) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
