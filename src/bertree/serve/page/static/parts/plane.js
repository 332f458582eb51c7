/** A canvas that shows a part of a plane: zoom and pan by wheel, mouse, touch and keyboard. */

const MOST = 60;

export class Plane {
  /** `draw(context, plane)` paints; `over(x, y)` is told where the pointer is, in pixels, or (null, null). */
  constructor(canvas, { draw, over, press, keys }, signal) {
    Object.assign(this, { canvas, draw, over, press, scale: 1, x: 0.5, y: 0.5, width: 0, height: 0 });
    this.pointers = new Map();
    const listen = (type, action, options = {}) =>
      canvas.addEventListener(type, action.bind(this), { signal, ...options });
    listen("wheel", this.wheel, { passive: false });
    listen("pointerdown", this.down);
    listen("pointermove", this.move);
    for (const type of ["pointerup", "pointercancel"]) listen(type, this.up);
    listen("pointerleave", () => this.over(null, null));
    listen("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (keys(event) || this.key(event)) event.preventDefault();
    });
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(canvas);
    signal.addEventListener("abort", () => observer.disconnect());
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width) return;
    const ratio = devicePixelRatio || 1;
    [this.width, this.height] = [box.width, box.height];
    [this.canvas.width, this.canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    this.paint();
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      const context = this.canvas.getContext("2d");
      const ratio = this.canvas.width / (this.width || 1);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      this.draw(context, this);
    });
  }

  /** Pixels of one unit; the unit square fits with a margin. */
  get unit() {
    return (Math.min(this.width, this.height) - 40) * this.scale;
  }

  /** The plane is shown wider than high, as the canvas is. */
  get stretch() {
    return Math.max(1, Math.min(2.2, this.width / (this.height || 1)));
  }

  toScreen(point) {
    return [
      this.width / 2 + (point.x - this.x) * this.unit * this.stretch,
      this.height / 2 + (point.y - this.y) * this.unit,
    ];
  }

  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const scale = Math.max(0.6, Math.min(MOST, this.scale * factor));
    const change = 1 / this.unit - this.scale / (this.unit * scale);
    this.x += ((px - this.width / 2) * change) / this.stretch;
    this.y += (py - this.height / 2) * change;
    this.scale = scale;
    this.paint();
  }

  pan(dx, dy) {
    this.x -= dx / (this.unit * this.stretch);
    this.y -= dy / this.unit;
    this.paint();
  }

  reset() {
    Object.assign(this, { scale: 1, x: 0.5, y: 0.5 });
    this.paint();
  }

  centre(point) {
    const [px, py] = this.toScreen(point);
    if (px > 30 && py > 30 && px < this.width - 30 && py < this.height - 30) return;
    [this.x, this.y] = [point.x, point.y];
    this.paint();
  }

  wheel(event) {
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX, event.offsetY);
  }

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.moved = 0;
  }

  move(event) {
    const here = [event.offsetX, event.offsetY];
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.over(...here);
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    this.pointers.set(event.pointerId, here);
    const [dx, dy] = [here[0] - before[0], here[1] - before[1]];
    this.moved += Math.abs(dx) + Math.abs(dy);
    if (!others.length) return this.pan(dx, dy);
    const apart = (place) => Math.hypot(place[0] - others[0][0], place[1] - others[0][1]) || 1;
    this.pan(dx / 2, dy / 2);
    return this.zoom(apart(here) / apart(before), (here[0] + others[0][0]) / 2, (here[1] + others[0][1]) / 2);
  }

  up(event) {
    if (this.pointers.delete(event.pointerId) && this.moved < 6 && event.type === "pointerup")
      this.press(event.offsetX, event.offsetY);
  }

  key(event) {
    const step = 60;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.shiftKey && moves[event.key]) this.pan(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") this.reset();
    else return false;
    return true;
  }
}
