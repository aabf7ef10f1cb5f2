// Browsers start no workers from files. Opened from a disk, the site runs its search in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      });
      const load = (source) => new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: source, onload: done, onerror: failed });
        inside.document.body.append(script);
      });
      inside.importScripts = (...sources) => sources.reduce((before, s) => before.then(() => load(s)), Promise.resolve());
      const ready = load(new URL(url, document.baseURI).href);
      this.postMessage = (data) => ready.then(() => {
        const event = new inside.MessageEvent("message", { data });
        inside.dispatchEvent(event);
      });
      this.terminate = () => frame.remove();
    }
  };
}
