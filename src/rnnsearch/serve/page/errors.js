/** A failed request, with a message of one sentence for the user. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status HTTP status code; 0 if the server did not respond.
   * @param {number} retryAfter Seconds to wait before retrying, or 0.
   */
  constructor(message, status, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}
