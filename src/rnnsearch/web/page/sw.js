// Keeps the page and its models on the device: after the first visit nothing is asked of the network. FILES and VERSION are
// written by `rnnsearch export`; another version takes the place of the old one at the next visit.

const VERSION = "@VERSION@";
const FILES = ["@FILES@"];
const NAME = `rnnsearch ${registration.scope} `;

self.addEventListener("install", (event) => {
  const keep = async () => {
    const cache = await caches.open(NAME + VERSION);
    await cache.addAll(FILES.map((file) => new Request(file, { cache: "no-cache" })));
    await self.skipWaiting();
  };
  event.waitUntil(keep());
});

self.addEventListener("activate", (event) => {
  const forget = async () => {
    for (const name of await caches.keys()) if (name.startsWith(NAME) && name !== NAME + VERSION) await caches.delete(name);
    await self.clients.claim();
  };
  event.waitUntil(forget());
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(registration.scope)) return;
  const answer = async () => {
    const cache = await caches.open(NAME + VERSION);
    return (await cache.match(request, { ignoreSearch: true })) ?? fetch(request);
  };
  event.respondWith(answer());
});
