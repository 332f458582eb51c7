// Browsers start no worker for a page that was opened as a file. The search then runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.waiting = []
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><body></body>")
      inner.document.close()
      inner.postMessage = data => setTimeout(() => this.onmessage && this.onmessage(new MessageEvent("message", { data: structuredClone(data) })))
      const script = inner.document.createElement("script")
      script.src = url
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      }
      script.onerror = event => this.onerror && this.onerror(event)
      inner.document.body.append(script)
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else setTimeout(() => this.frame.contentWindow.onmessage(new MessageEvent("message", { data: structuredClone(data) })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
