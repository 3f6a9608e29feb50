// Runs the trace processor of Perfetto's web page, which is WebAssembly made for a browser's worker, in node.
// node trace_processor.js DIR < requests > replies. DIR has engine_bundle.js; each request is its length (4 bytes) and itself.
const fs = require('fs');
const path = require('path');

const directory = process.argv[2];
const replies = [];

class FileRequest { // of all that a browser offers, only reading the module is used
  open(_method, url) { this.url = url; }
  send() {
    this.response = new Uint8Array(fs.readFileSync(path.join(directory, path.basename(this.url)))).buffer;
    this.status = 200;
  }
}
const worker = {location: {href: 'http://localhost/engine_bundle.js'}};
const quiet = {log() {}, warn() {}, error() {}};
const code = fs.readFileSync(path.join(directory, 'engine_bundle.js'), 'utf8');
new Function('self', 'process', 'XMLHttpRequest', 'WorkerGlobalScope', 'console', code)(
    worker, undefined, FileRequest, class {}, quiet);

const port = {postMessage(data) { replies.push(Buffer.from(data)); }};

function answer() {
  const requests = fs.readFileSync(0);
  for (let at = 0; at < requests.length;) {
    const size = requests.readUInt32LE(at);
    port.onmessage({data: new Uint8Array(requests.subarray(at + 4, at + 4 + size))});
    at += 4 + size;
  }
  const out = Buffer.concat(replies);
  for (let at = 0; at < out.length;) at += fs.writeSync(1, out, at);
}

worker.onmessage({data: port});
setImmediate(answer); // the module gets ready in promises, which come first
