// Up to 100,000 points in the plane, drawn with WebGL2, or on a plain canvas without it.

const VERTEX = `#version 300 es
in vec2 point; in vec4 colour;
uniform vec2 centre, scale; uniform float size;
out vec4 shade;
void main() {
  gl_Position = vec4((point - centre) * scale, 0.0, 1.0);
  gl_PointSize = size * (colour.a > 0.99 ? 1.25 : 1.0);
  shade = colour;
}`;
const FRAGMENT = `#version 300 es
precision mediump float;
in vec4 shade; out vec4 result;
void main() {
  float far = length(gl_PointCoord - 0.5) * 2.0;
  float alpha = shade.a * (1.0 - smoothstep(0.78, 1.0, far));
  result = vec4(shade.rgb * alpha, alpha);
}`;

/** A colour for each label, far from those of the next labels: hues by the golden angle, on three levels. */
export function colourOf(number, dark) {
  if (number < 0) return dark ? [148, 143, 136] : [140, 134, 127];
  const hue = ((number * 137.508 + 195) * Math.PI) / 180;
  const light = (dark ? [0.74, 0.66, 0.82] : [0.6, 0.5, 0.69])[Math.floor(number / 8) % 3];
  const chroma = [0.145, 0.115][number % 2];
  const [a, b] = [chroma * Math.cos(hue), chroma * Math.sin(hue)];
  // Oklab to sRGB (Ottosson 2020).
  const [l, m, s] = [light + 0.3963377774 * a + 0.2158037573 * b, light - 0.1055613458 * a - 0.0638541728 * b, light - 0.0894841775 * a - 1.291485548 * b].map((x) => x ** 3);
  const linear = [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s, -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s];
  return linear.map((x) => Math.round(255 * Math.min(1, Math.max(0, x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055))));
}

/** Points by cells, to find those near a point quickly. */
export class Cells {
  constructor(x, y) {
    this.x = x;
    this.y = y;
    this.side = Math.max(1, Math.min(512, Math.ceil(Math.sqrt(x.length / 4))));
    this.box = { left: Infinity, right: -Infinity, low: Infinity, high: -Infinity };
    for (let i = 0; i < x.length; i++) {
      this.box.left = Math.min(this.box.left, x[i]);
      this.box.right = Math.max(this.box.right, x[i]);
      this.box.low = Math.min(this.box.low, y[i]);
      this.box.high = Math.max(this.box.high, y[i]);
    }
    const count = new Uint32Array(this.side * this.side + 1);
    const cell = Uint32Array.from(x, (_, i) => this.#cell(x[i], y[i]));
    for (const number of cell) count[number + 1]++;
    for (let i = 1; i < count.length; i++) count[i] += count[i - 1];
    this.first = count.slice();
    this.order = new Uint32Array(x.length);
    cell.forEach((number, i) => { this.order[count[number]++] = i; });
  }

  #column(value, low, high) {
    return Math.min(this.side - 1, Math.max(0, Math.floor(((value - low) / (high - low || 1)) * this.side)));
  }

  #cell(x, y) {
    return this.#column(y, this.box.low, this.box.high) * this.side + this.#column(x, this.box.left, this.box.right);
  }

  /** The points in a box; not more than `most`, if given. */
  within({ left, right, low, high }, most = Infinity) {
    const points = [];
    const [c0, c1] = [left, right].map((value) => this.#column(value, this.box.left, this.box.right));
    const [r0, r1] = [low, high].map((value) => this.#column(value, this.box.low, this.box.high));
    for (let row = r0; row <= r1; row++) {
      for (let at = this.first[row * this.side + c0]; at < this.first[row * this.side + c1 + 1]; at++) {
        const i = this.order[at];
        if (this.x[i] >= left && this.x[i] <= right && this.y[i] >= low && this.y[i] <= high) {
          if (points.length >= most) return null;
          points.push(i);
        }
      }
    }
    return points;
  }

  nearest(x, y, reach) {
    let best = -1;
    let least = reach * reach;
    for (const i of this.within({ left: x - reach, right: x + reach, low: y - reach, high: y + reach })) {
      const far = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
      if (far <= least) [best, least] = [i, far];
    }
    return best;
  }
}

/** Whether points lie inside a closed line, by the number of times a ray from them crosses it. */
export function inside(polygon, x, y) {
  let is = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i];
    const [xj, yj] = polygon[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) is = !is;
  }
  return is;
}

export function painter(canvas) {
  const gl = canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: true });
  return gl ? new WebGL(canvas, gl) : new Plain(canvas);
}

class WebGL {
  constructor(canvas, gl) {
    this.canvas = canvas;
    this.gl = gl;
    const program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    this.at = Object.fromEntries(["centre", "scale", "size"].map((name) => [name, gl.getUniformLocation(program, name)]));
    this.buffers = {};
    for (const [name, width, type, whole] of [["point", 2, gl.FLOAT, false], ["colour", 4, gl.UNSIGNED_BYTE, true]]) {
      const location = gl.getAttribLocation(program, name);
      this.buffers[name] = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      gl.enableVertexAttribArray(location);
      gl.vertexAttribPointer(location, width, type, whole, 0, 0);
    }
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  points(values) {
    this.#fill("point", values);
    this.count = values.length / 2;
  }

  colours(values) {
    this.#fill("colour", values);
  }

  #fill(name, values) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, values, this.gl.STATIC_DRAW);
  }

  draw({ x, y, scale, size }) {
    const { gl, canvas } = this;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(this.at.centre, x, y);
    gl.uniform2f(this.at.scale, (2 * scale) / canvas.width, (2 * scale) / canvas.height);
    gl.uniform1f(this.at.size, size);
    gl.drawArrays(gl.POINTS, 0, this.count ?? 0);
  }
}

class Plain {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  points(values) {
    this.values = values;
  }

  colours(values) {
    this.shades = values;
  }

  draw({ x, y, scale, size }) {
    const { context, canvas, values, shades } = this;
    context.clearRect(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < (values?.length ?? 0) / 2; i++) {
      const across = (values[2 * i] - x) * scale + canvas.width / 2;
      const down = canvas.height / 2 - (values[2 * i + 1] - y) * scale;
      if (across < 0 || down < 0 || across > canvas.width || down > canvas.height) continue;
      context.fillStyle = `rgba(${shades[4 * i]},${shades[4 * i + 1]},${shades[4 * i + 2]},${shades[4 * i + 3] / 255})`;
      context.fillRect(across - size / 2, down - size / 2, size, size);
    }
  }
}
