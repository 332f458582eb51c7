/** Requests to the server. Every error becomes one line. */

const KEY = "bertree-api-key";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** Addresses are relative, so that the page also works behind a proxy that serves it under a prefix. */
export const address = (path) => new URL(path.replace(/^\//, ""), document.baseURI.split("#")[0]).href;

function line(status, body, headers) {
  const wait = headers.get("retry-after");
  if (status === 429) return `The server is busy${wait ? `; try again in ${wait} s` : ""}.`;
  const message = body?.error?.message ?? body?.error ?? body?.message ?? body?.detail;
  if (typeof message === "string" && message) return message.split("\n")[0];
  return `The server answered ${status}.`;
}

/** Send a request; return the response, or throw a ServerError. An aborted request throws AbortError. */
export async function send(path, body, signal) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(address(path), {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is it still running?", 0);
  }
  if (response.ok) return response;
  let answer = null;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  throw new ServerError(line(response.status, answer, response.headers), response.status);
}

const broken = (error) => (error.name === "AbortError" ? error : new ServerError("The answer broke off.", 0));

export async function json(response) {
  try {
    return await response.json();
  } catch (error) {
    throw broken(error);
  }
}

/** The values of a stream of server-sent events, each a JSON object. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => Promise.reject(broken(error)));
    rest += value ?? "";
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = done ? "" : blocks.pop();
    for (const block of blocks) {
      const data = block
        .split(/\r?\n/)
        .filter((row) => row.startsWith("data:"))
        .map((row) => row.slice(5).trim());
      if (data.length && data[0] !== "[DONE]") yield JSON.parse(data.join("\n"));
    }
    if (done) return;
  }
}
