// Search from a file: a page that was opened from a disk may not start workers, so the one of the search runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), {hidden: true});
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      const answer = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
      inside.postMessage = answer; // what the script means by postMessage: to whom it works for
      inside.importScripts = (...urls) => urls.reduce((last, each) => last.then(() => this.load(each)), Promise.resolve());
      this.ready = this.load(url);
    }
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        Object.assign(script, {src: url, onload: resolve, onerror: reject});
        this.frame.contentDocument.body.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
