// Texts without letters, and texts that show nothing (text/letters.py).

import { WHITE_SPACE } from "./pretokenizer.js";

const INVISIBLE = new RegExp(`^[${WHITE_SPACE}\\p{Cf}]*$`, "u");

/** Return true if a text contains a letter of any script. */
export const hasLetters = (text) => /\p{L}/u.test(text);

/** Return true if a text shows nothing: white space and format characters. */
export const isInvisible = (text) => INVISIBLE.test(text);
