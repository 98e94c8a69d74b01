// Service worker: stores the page and its models, so that later visits need no network.
// `rnnsearch export` fills in VERSION and FILES; a new version replaces the old one at the next visit.

const VERSION = "@VERSION@";
const FILES = ["@FILES@"];
const PREFIX = `rnnsearch ${registration.scope} `;
const CACHE = PREFIX + VERSION;

async function install() {
  const cache = await caches.open(CACHE);
  await cache.addAll(FILES.map((file) => new Request(file, { cache: "no-cache" })));
  await self.skipWaiting();
}

async function activate() {
  for (const name of await caches.keys()) {
    if (name.startsWith(PREFIX) && name !== CACHE) await caches.delete(name);
  }
  await self.clients.claim();
}

async function respond(request) {
  const cache = await caches.open(CACHE);
  return (await cache.match(request, { ignoreSearch: true })) ?? fetch(request);
}

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(registration.scope)) return;
  event.respondWith(respond(request));
});
