// Search runs in a Worker, which browsers refuse to pages that are opened from disk. There it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #ready

    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.#ready = new Promise(loaded => {
        const script = inside.document.createElement("script")
        script.src = new URL(url, document.baseURI)
        script.onload = () => loaded(inside)
        inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.#ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
