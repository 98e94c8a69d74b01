/** A problem with a file or a request, described in one sentence. */
export class RnnsearchError extends Error {
  name = "RnnsearchError";
}
