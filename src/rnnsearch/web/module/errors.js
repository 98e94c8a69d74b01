/** What is wrong with a file or a request, in one sentence. */
export class RnnsearchError extends Error {
  name = "RnnsearchError";
}
