// Requests many chunks at once, as zarrita and other programs in Node do: by fetch, or by http.get with an agent that
// opens a connection for each request that finds no free one.
//
// Arguments: fetch or http, the URL of a dataset with a trailing slash, the number of chunks. Each chunk begins with
// its number. Prints JSON: the number of answers by status, the number of wrong bodies, the number of errors by code,
// and the milliseconds.
import http from "node:http";

const [how, dataset, chunks] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const statuses = {};
const errors = {};
let wrong = 0;

const count = (counts, name) => (counts[name] = (counts[name] ?? 0) + 1);

function byFetch(url) {
  return fetch(url).then(async (response) => [response.status, Buffer.from(await response.arrayBuffer())]);
}

const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });

function byHttp(url) {
  return new Promise((resolve, reject) => {
    const request = http.get(url, { agent }, (response) => {
      const pieces = [];
      response.on("data", (piece) => pieces.push(piece));
      response.on("end", () => resolve([response.statusCode, Buffer.concat(pieces)]));
      response.on("error", reject);
    });
    request.on("error", reject);
  });
}

const ask = how === "fetch" ? byFetch : byHttp;
const begin = performance.now();
await Promise.all(
  Array.from({ length: chunks }, async (_, n) => {
    try {
      const [status, body] = await ask(`${dataset}${n}/0`);
      count(statuses, status);
      // An N5 block of two axes: a header of 12 bytes, then the elements.
      if (status === 200 && (body.length !== 12 + 512 || body.readUInt32BE(12) !== n)) wrong += 1;
    } catch (error) {
      count(errors, error.cause?.code ?? error.code ?? String(error));
    }
  }),
);
agent.destroy();
console.log(JSON.stringify({ statuses, wrong, errors, milliseconds: Math.round(performance.now() - begin) }));
