"""Contrast of colours (WCAG 2.2). A colour is a tuple of red, green and blue from 0 to 1."""

Colour = tuple[float, ...]


def luminance(colour: Colour) -> float:
    """Return the relative luminance."""
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(colour: Colour) -> float:
    """Return the lightness of OKLab, a perceptually uniform colour space (Ottosson 2020)."""
    red, green, blue = linear(colour)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return 0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short


def linear(colour: Colour) -> Colour:
    """Return linear-light values, without the transfer function of sRGB."""
    return tuple(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour)


def contrast(first: Colour, second: Colour) -> float:
    """Return the contrast ratio, from 1 to 21."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)
