"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const KINDS = ["exchange", "compute", "synchronization", "idle"]; // by number, as in the file
  const SHOWN = ["compute", "exchange", "synchronization", "idle"];
  const number = new Intl.NumberFormat("en-US");
  const cycles = (n) => number.format(Math.round(n));
  const percent = (x) => (100 * x).toFixed(1) + " %";
  const run = Math.max(1, data.end - data.start);

  // ---- Samples: for each tile a count, then gap, length and class as variable-length numbers.

  const samples = (() => {
    const text = atob($("samples").textContent.trim());
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    let at = 0;
    const next = () => {
      let value = 0, scale = 1;
      for (;;) {
        const b = bytes[at++];
        value += (b & 127) * scale;
        if (b < 128) return value;
        scale *= 128;
      }
    };
    const first = new Uint32Array(data.tiles.length + 1);
    const start = new Uint32Array(data.samples), end = new Uint32Array(data.samples), kind = new Uint32Array(data.samples);
    let n = 0;
    for (let t = 0; t < data.tiles.length; t++) {
      first[t] = n;
      let now = data.base;
      for (let k = next(); k > 0; k--) {
        start[n] = now += next();
        end[n] = now += next();
        kind[n++] = next();
      }
    }
    first[data.tiles.length] = n;
    return { first, start, end, kind };
  })();

  // A class is what samples have in common: seven numbers each.
  const classOf = (i) => {
    const c = data.classes, k = 7 * samples.kind[i];
    return { operation: data.strings[c[k]], kernel: data.strings[c[k + 1]], kind: c[k + 2], barrier: c[k + 3], phase: c[k + 4], epoch: c[k + 5], meta: data.metas[c[k + 6]] };
  };
  const classes = data.classes.length / 7;
  const arrival = new Float64Array(classes); // last arrival of the barrier, 0 where there is none
  for (let k = 0; k < classes; k++) {
    const b = data.classes[7 * k + 3];
    if (b >= 0 && data.classes[7 * k + 2] === 0) arrival[k] = data.barriers[b].last_arrival;
  }

  const tileName = (t) => `tile ${data.tiles[t]} (logical ${data.logical[t]})`;
  const describe = (t, i) => {
    const c = classOf(i), s = samples.start[i], e = samples.end[i];
    const lines = [c.operation || "(no operation)", [c.kernel, KINDS[c.kind], `phase ${c.phase}`, c.epoch ? `epoch ${c.epoch}` : ""].filter(Boolean).join(" · "),
      `${tileName(t)}: cycles ${cycles(s - data.start)} to ${cycles(e - data.start)}, ${cycles(e - s)} in all`];
    const a = arrival[samples.kind[i]];
    if (a > s) lines.push(`waits ${cycles(Math.min(a, e) - s)} for the last tile, then ${cycles(Math.max(0, e - a))}`);
    for (let k = 0; k < c.meta.length; k += 2) lines.push(`${data.strings[c.meta[k]]}: ${data.strings[c.meta[k + 1]]}`);
    return lines;
  };

  // ---- Small builders. Names from the profile only ever become text nodes.

  const make = (tag, attributes = {}, ...children) => {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(attributes)) k === "class" ? (e.className = v) : e.setAttribute(k, v);
    e.append(...children);
    return e;
  };
  const stack = (kinds, whole) => {
    const bar = make("div", { class: "stack", role: "img", "aria-label": SHOWN.map((k) => `${k} ${cycles(kinds[k])}`).join(", ") });
    for (const k of SHOWN) {
      if (!kinds[k]) continue;
      const part = make("div", { class: k, title: `${k}: ${cycles(kinds[k])} cycles, ${percent(kinds[k] / run)} of the run` });
      part.style.width = (100 * kinds[k]) / whole + "%";
      bar.append(part);
    }
    return bar;
  };
  const total = (kinds) => SHOWN.reduce((n, k) => n + kinds[k], 0);

  // table builds a sortable table: columns of {name, value(row), cell(row), text}.
  const table = (element, columns, rows) => {
    const body = make("tbody"), head = make("tr");
    let sorted = -1, down = false;
    const fill = () => {
      const order = rows.slice();
      if (sorted >= 0) {
        const v = columns[sorted].value;
        order.sort((a, b) => (v(a) < v(b) ? -1 : v(a) > v(b) ? 1 : 0) * (down ? -1 : 1));
      }
      body.replaceChildren(...order.map((r) => make("tr", {}, ...columns.map((c) => make("td", c.class ? { class: c.class } : {}, c.cell ? c.cell(r) : cycles(c.value(r)))))));
    };
    columns.forEach((c, i) => {
      const th = make("th", c.class ? { class: c.class, scope: "col" } : { scope: "col" });
      const button = make("button", { type: "button" }, c.name);
      button.onclick = () => {
        down = sorted === i ? !down : c.class !== "text";
        sorted = i;
        for (const other of head.children) other.removeAttribute("aria-sort");
        th.setAttribute("aria-sort", down ? "descending" : "ascending");
        fill();
      };
      th.append(button);
      head.append(th);
    });
    element.replaceChildren(make("thead", {}, head), body);
    fill();
  };

  // ---- Header and whole-run bars.

  $("title").textContent = data.title;
  $("origin").append(make("strong", {}, data.origin), " " + data.device);
  const path = data.critical_path_kinds;
  for (const [value, label] of [
    [cycles(data.end - data.start), "cycles"],
    [((data.end - data.start) / data.clock_hz * 1000).toFixed(4) + " ms", `at ${data.clock_hz / 1e9} GHz`],
    [cycles(data.tiles.length), "tiles"],
    [cycles(data.barriers.length), "exchange phases"],
    [percent(data.mean_kinds.compute / run), "compute, average tile"],
    [percent(path.compute / run), "compute, critical path"],
  ]) $("cards").append(make("div", { class: "card" }, make("b", {}, value), make("span", {}, label)));
  for (const f of data.facts) $("facts").append(make("dt", {}, f.Name), make("dd", {}, f.Value));
  for (const k of SHOWN) $("legend").append(make("span", {}, make("i", { class: k }), k === "synchronization" ? "synchronization (waiting for the last tile; in bars also entering and leaving exchanges)" : k));
  for (const [name, kinds] of [["critical path", path], [`critical tile, ${data.critical_tile}`, data.critical_tile_kinds], ["average tile", data.mean_kinds]]) {
    $("kinds").append(make("tr", {}, make("td", { class: "text" }, name), make("td", { class: "bar" }, stack(kinds, run)),
      make("td", { class: "text" }, SHOWN.map((k) => `${k} ${percent(kinds[k] / run)}`).join(", "))));
  }

  // ---- Timeline.

  const box = $("timeline"), base = $("base"), over = $("over"), tip = $("tip");
  const LEFT = 74, TOP = 22; // margins for names of tiles and for cycles, in CSS pixels
  const rows = data.tiles.length;
  const byTile = { logical: data.logical.map((_, t) => t), physical: null, busy: null };
  byTile.logical.sort((a, b) => data.logical[a] - data.logical[b]);
  byTile.physical = data.tiles.map((_, t) => t);
  byTile.busy = data.tiles.map((_, t) => t).sort((a, b) => data.tile_compute[b] - data.tile_compute[a] || a - b);
  let order = byTile.logical;
  const view = { t0: 0, t1: 1, r0: 0, r1: 1 };
  let selected = null; // {t, i}
  let match = null; // by class, while searching
  let wide = 1, high = 1, ratio = 1; // of the plot, in device pixels
  let drag = null, pending = false;

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const packed = (css, alpha = 1) => { // colour over the idle background as one 32-bit pixel
    const read = (c) => [1, 3, 5].map((k) => parseInt(c.slice(k, k + 2), 16));
    const a = read(css), b = read(style("idle"));
    const [red, green, blue] = a.map((x, k) => Math.round(x * alpha + b[k] * (1 - alpha)));
    return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
  };
  const hue = (index) => { // distinct colours for names: golden-angle hues
    const h = (index * 137.508) % 360, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const l = dark ? 0.58 : 0.5, a = 0.55 * Math.min(l, 1 - l), x = (n) => { // one channel of hsl(h, 55 %, l)
      const k = (n + h / 30) % 12;
      return Math.round(255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1)))).toString(16).padStart(2, "0");
    };
    return "#" + x(0) + x(8) + x(4);
  };
  let paint = new Uint32Array(classes), waiting = new Uint32Array(classes), ground = 0;
  const recolour = () => {
    const by = $("colour").value, kindColour = KINDS.map(style);
    ground = packed(style("idle"));
    for (let k = 0; k < classes; k++) {
      const kind = data.classes[7 * k + 2], alpha = match && !match[k] ? 0.12 : 1;
      let css = kindColour[kind];
      if (by === "operation") css = hue(data.classes[7 * k]);
      if (by === "kernel" && kind === 1) css = hue(data.classes[7 * k + 1]);
      paint[k] = packed(css, alpha);
      waiting[k] = packed(kindColour[2], alpha);
    }
    names(by);
  };
  // names explains colours that the legend of kinds does not.
  const names = (by) => {
    const field = by === "operation" ? 0 : 1, seen = new Set(), list = $("names");
    list.replaceChildren();
    for (let k = 0; by !== "kind" && k < classes && seen.size < 40; k++) {
      const s = data.classes[7 * k + field];
      if (seen.has(s) || !data.strings[s] || (by === "kernel" && data.classes[7 * k + 2] !== 1)) continue;
      seen.add(s);
      const dot = make("i");
      dot.style.background = hue(s);
      list.append(make("span", {}, dot, data.strings[s]));
    }
  };

  const clamp = () => {
    const long = Math.min(Math.max(view.t1 - view.t0, 20), run), tall = Math.min(Math.max(view.r1 - view.r0, 1), rows);
    view.t0 = Math.min(Math.max(view.t0, data.start), data.end - long);
    view.t1 = view.t0 + long;
    view.r0 = Math.min(Math.max(view.r0, 0), rows - tall);
    view.r1 = view.r0 + tall;
  };
  const redraw = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      draw();
    });
  };
  const whole = () => {
    Object.assign(view, { t0: data.start, t1: data.end, r0: 0, r1: rows });
    redraw();
  };
  // firstAfter is the first sample of a tile that ends after a cycle.
  const firstAfter = (t, cycle) => {
    let lo = samples.first[t], hi = samples.first[t + 1];
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      samples.end[mid] > cycle ? (hi = mid) : (lo = mid + 1);
    }
    return lo;
  };

  const draw = () => {
    clamp();
    ratio = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(box.clientWidth * ratio)), height = Math.max(1, Math.round(box.clientHeight * ratio));
    for (const c of [base, over]) if (c.width !== width || c.height !== height) { c.width = width; c.height = height; }
    const left = Math.round(LEFT * ratio), top = Math.round(TOP * ratio);
    wide = Math.max(1, width - left);
    high = Math.max(1, height - top);
    const g = base.getContext("2d");
    g.clearRect(0, 0, width, height);
    const image = g.createImageData(wide, high), px = new Uint32Array(image.data.buffer);
    const sx = wide / (view.t1 - view.t0), sy = (view.r1 - view.r0) / high, gap = 1 / sy >= 6 * ratio;
    let last = -1;
    for (let y = 0; y < high; y++) {
      const row = Math.min(rows - 1, Math.floor(view.r0 + (y + 0.5) * sy)), from = y * wide;
      if (row === last) {
        px.copyWithin(from, from - wide, from);
        continue;
      }
      if (gap && last >= 0) px.fill(0, from - wide, from); // a line between tiles
      last = row;
      px.fill(ground, from, from + wide);
      const t = order[row], stop = samples.first[t + 1];
      for (let i = firstAfter(t, view.t0); i < stop && samples.start[i] < view.t1; i++) {
        const k = samples.kind[i];
        const x0 = Math.max(0, Math.floor((samples.start[i] - view.t0) * sx));
        const x1 = Math.min(wide, Math.max(x0 + 1, Math.floor((samples.end[i] - view.t0) * sx)));
        const a = arrival[k];
        let x = x0;
        if (a > samples.start[i]) {
          const xa = Math.min(x1, Math.floor((Math.min(a, samples.end[i]) - view.t0) * sx));
          if (xa > x0) px.fill(waiting[k], from + x0, from + (x = xa));
        }
        if (x < x1) px.fill(paint[k], from + x, from + x1);
      }
    }
    g.putImageData(image, left, top);
    axes(g, left, top);
    overlay();
  };

  const axes = (g, left, top) => {
    g.fillStyle = style("dim");
    g.strokeStyle = style("line");
    g.font = `${11 * ratio}px system-ui, sans-serif`;
    g.textBaseline = "middle";
    g.textAlign = "center";
    const span = view.t1 - view.t0, rough = (span / wide) * 110 * ratio, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough) || power * 10;
    for (let c = Math.ceil((view.t0 - data.start) / step) * step; c <= view.t1 - data.start; c += step) {
      const x = left + ((c + data.start - view.t0) / span) * wide;
      g.fillText(cycles(c), Math.min(Math.max(x, left + 20 * ratio), left + wide - 30 * ratio), top / 2);
      g.beginPath();
      g.moveTo(x, top - 4 * ratio);
      g.lineTo(x, top);
      g.stroke();
    }
    g.textAlign = "right";
    g.fillText($("order").value === "physical" ? "physical" : "logical", left - 8 * ratio, top / 2);
    const each = high / (view.r1 - view.r0), every = Math.max(1, Math.ceil((14 * ratio) / each));
    for (let r = Math.ceil(view.r0 / every) * every; r < view.r1; r += every) {
      const y = top + (r + 0.5 - view.r0) * each;
      if (y > top + 5 * ratio && y < top + high - 4 * ratio) {
        const t = order[r];
        g.fillText(String(($("order").value === "physical" ? data.tiles : data.logical)[t]), left - 8 * ratio, y);
      }
    }
  };

  const rowOf = () => {
    const at = new Int32Array(rows);
    order.forEach((t, r) => (at[t] = r));
    return at;
  };
  const overlay = () => {
    const g = over.getContext("2d"), left = Math.round(LEFT * ratio), top = Math.round(TOP * ratio);
    g.clearRect(0, 0, over.width, over.height);
    g.save();
    g.beginPath();
    g.rect(left, top, wide, high);
    g.clip();
    const X = (c) => left + ((c - view.t0) / (view.t1 - view.t0)) * wide, each = high / (view.r1 - view.r0), Y = (r) => top + (r - view.r0) * each;
    const at = rowOf();
    if ($("path").checked) {
      g.strokeStyle = style("path");
      g.lineWidth = 2 * ratio;
      g.beginPath();
      for (let k = 0; k < data.path.length; k += 3) {
        const y = Y(at[data.path[k]] + 0.5);
        g.lineTo(X(data.path[k + 1]), y);
        g.lineTo(X(data.path[k + 2]), y);
      }
      g.stroke();
    }
    if (selected) {
      const y = Y(at[selected.t]), x = X(samples.start[selected.i]);
      g.strokeStyle = style("mark");
      g.lineWidth = 2 * ratio;
      g.strokeRect(x, y, Math.max(2, X(samples.end[selected.i]) - x), Math.max(2, each));
    }
    if (drag && drag.zoom) {
      g.strokeStyle = style("accent");
      g.lineWidth = ratio;
      g.strokeRect(drag.x * ratio, drag.y * ratio, (drag.nowX - drag.x) * ratio, (drag.nowY - drag.y) * ratio);
    }
    g.restore();
  };

  const locate = (x, y) => { // CSS pixels in the box
    const cycle = view.t0 + ((x - LEFT) * ratio / wide) * (view.t1 - view.t0);
    const r = view.r0 + ((y - TOP) * ratio / high) * (view.r1 - view.r0);
    return { cycle, r, inside: x >= LEFT && y >= TOP && r >= 0 && r < rows };
  };
  const sampleAt = (x, y) => {
    const p = locate(x, y);
    if (!p.inside) return null;
    const t = order[Math.floor(p.r)];
    const i = firstAfter(t, p.cycle);
    return i < samples.first[t + 1] && samples.start[i] <= p.cycle ? { t, i } : null;
  };
  const zoom = (factor, x, tiles, y) => {
    const p = locate(x, y);
    if (tiles) {
      view.r0 = p.r - (p.r - view.r0) * factor;
      view.r1 = p.r + (view.r1 - p.r) * factor;
    } else {
      // Keep the width when the limit is reached, or the view would creep.
      const long = Math.min(Math.max((view.t1 - view.t0) * factor, 20), run), f = long / (view.t1 - view.t0);
      view.t0 = p.cycle - (p.cycle - view.t0) * f;
      view.t1 = view.t0 + long;
    }
    redraw();
  };
  const show = (t0, t1) => {
    const pad = Math.max(10, (t1 - t0) * 0.05);
    view.t0 = t0 - pad;
    view.t1 = t1 + pad;
    redraw();
    box.scrollIntoView({ block: "nearest" });
  };
  const select = (s, follow) => {
    selected = s;
    $("selected").textContent = s ? describe(s.t, s.i).join(" · ") : "";
    if (s && follow) {
      const r = rowOf()[s.t], from = samples.start[s.i], to = samples.end[s.i];
      if (to < view.t0 || from > view.t1) {
        const long = view.t1 - view.t0;
        view.t0 = (from + to) / 2 - long / 2;
        view.t1 = view.t0 + long;
      }
      if (r < view.r0 || r >= view.r1) {
        const tall = view.r1 - view.r0;
        view.r0 = r + 0.5 - tall / 2;
        view.r1 = view.r0 + tall;
      }
      redraw();
    } else overlay();
  };

  const place = (e) => {
    const r = box.getBoundingClientRect();
    return [e.clientX - r.left - box.clientLeft, e.clientY - r.top - box.clientTop];
  };
  box.addEventListener("pointerdown", (e) => {
    if (e.button !== 0) return;
    const [x, y] = place(e);
    drag = { x, y, nowX: x, nowY: y, view: { ...view }, zoom: e.shiftKey, moved: false };
    box.setPointerCapture(e.pointerId);
    box.focus({ preventScroll: true });
  });
  box.addEventListener("pointermove", (e) => {
    const [x, y] = place(e);
    if (drag) {
      drag.nowX = x;
      drag.nowY = y;
      drag.moved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3;
      if (drag.zoom) overlay();
      else if (drag.moved) {
        const v = drag.view, dt = ((x - drag.x) * ratio / wide) * (v.t1 - v.t0), dr = ((y - drag.y) * ratio / high) * (v.r1 - v.r0);
        Object.assign(view, { t0: v.t0 - dt, t1: v.t1 - dt, r0: v.r0 - dr, r1: v.r1 - dr });
        redraw();
      }
      tip.hidden = true;
      return;
    }
    const s = sampleAt(x, y);
    tip.hidden = !s;
    if (!s) return;
    tip.textContent = describe(s.t, s.i).join("\n");
    tip.style.left = Math.max(4, Math.min(x + 14, box.clientWidth - tip.offsetWidth - 6)) + "px";
    tip.style.top = (y + 18 + tip.offsetHeight > box.clientHeight ? Math.max(4, y - 12 - tip.offsetHeight) : y + 18) + "px";
  });
  box.addEventListener("pointerup", () => {
    const d = drag;
    drag = null;
    if (!d) return;
    if (!d.moved) select(sampleAt(d.x, d.y), false);
    else if (d.zoom) {
      const a = locate(Math.min(d.x, d.nowX), Math.min(d.y, d.nowY)), b = locate(Math.max(d.x, d.nowX), Math.max(d.y, d.nowY));
      Object.assign(view, { t0: a.cycle, t1: b.cycle, r0: a.r, r1: b.r });
      redraw();
    }
  });
  box.addEventListener("pointercancel", () => (drag = null));
  box.addEventListener("pointerleave", () => (tip.hidden = true));
  box.addEventListener("dblclick", (e) => {
    const [x, y] = place(e);
    zoom(0.25, x, false, y);
  });
  box.addEventListener("wheel", (e) => {
    // A page that cannot be scrolled past its timeline is a nuisance.
    if (document.activeElement !== box && !e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    const [x, y] = place(e), delta = e.deltaY || e.deltaX;
    zoom(Math.exp(Math.max(-1, Math.min(1, delta / 300))), x, e.shiftKey, y);
  }, { passive: false });
  box.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const long = (view.t1 - view.t0) / 8, tall = Math.max(1, (view.r1 - view.r0) / 8);
    const middle = [LEFT + (box.clientWidth - LEFT) / 2, TOP + (box.clientHeight - TOP) / 2];
    const pan = (dt, dr) => { Object.assign(view, { t0: view.t0 + dt, t1: view.t1 + dt, r0: view.r0 + dr, r1: view.r1 + dr }); redraw(); };
    const step = (n) => {
      if (!selected) return select(sampleAt(...middle) || (data.samples ? { t: order[0], i: samples.first[order[0]] } : null), true);
      const i = selected.i + n;
      if (i >= samples.first[selected.t] && i < samples.first[selected.t + 1]) select({ t: selected.t, i }, true);
    };
    const across = (n) => {
      if (!selected) return step(0);
      const r = rowOf()[selected.t] + n;
      if (r < 0 || r >= rows) return;
      const t = order[r], i = Math.min(firstAfter(t, samples.start[selected.i]), samples.first[t + 1] - 1);
      if (i >= samples.first[t]) select({ t, i }, true);
    };
    const action = {
      ArrowLeft: () => pan(-long, 0), ArrowRight: () => pan(long, 0), ArrowUp: () => pan(0, -tall), ArrowDown: () => pan(0, tall),
      "+": () => zoom(0.7, middle[0], false, middle[1]), "=": () => zoom(0.7, middle[0], false, middle[1]), "-": () => zoom(1 / 0.7, middle[0], false, middle[1]),
      "]": () => zoom(0.7, middle[0], true, middle[1]), "[": () => zoom(1 / 0.7, middle[0], true, middle[1]),
      0: whole, Home: whole, n: () => step(1), p: () => step(-1), j: () => across(1), k: () => across(-1),
      f: () => selected && show(samples.start[selected.i], samples.end[selected.i]),
      c: () => { $("path").checked = !$("path").checked; overlay(); }, "/": () => $("find").focus(), Escape: () => select(null, false),
    }[e.key];
    if (!action) return;
    e.preventDefault();
    action();
  });

  // ---- Tools.

  $("colour").onchange = () => { recolour(); redraw(); };
  $("order").onchange = () => { order = byTile[$("order").value]; redraw(); };
  $("path").onchange = overlay;
  $("whole").onclick = whole;
  $("find").oninput = () => {
    const wanted = $("find").value.trim().toLowerCase();
    match = null;
    if (wanted) {
      const hit = data.strings.map((s) => s.toLowerCase().includes(wanted));
      match = new Uint8Array(classes);
      for (let k = 0; k < classes; k++) {
        const c = 7 * k;
        if (hit[data.classes[c]] || hit[data.classes[c + 1]] || data.metas[data.classes[c + 6]].some((s) => hit[s])) match[k] = 1;
      }
    }
    let n = 0;
    if (match) for (let i = 0; i < data.samples; i++) n += match[samples.kind[i]];
    $("found").textContent = match ? `${cycles(n)} samples` : "";
    recolour();
    redraw();
  };
  $("find").onkeydown = (e) => {
    if (e.key === "Escape") { $("find").value = ""; $("find").oninput(); box.focus(); }
    if (e.key !== "Enter" || !match) return;
    // The next match in time on the selected tile, else on the tiles below it.
    const at = selected ? rowOf()[selected.t] : 0;
    for (let k = 0; k <= rows; k++) {
      const t = order[(at + k) % rows];
      for (let i = k === 0 && selected ? selected.i + 1 : samples.first[t]; i < samples.first[t + 1]; i++) {
        if (match[samples.kind[i]]) return select({ t, i }, true);
      }
    }
  };
  new ResizeObserver(redraw).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { recolour(); redraw(); });

  // ---- Tables.

  const jump = (text, t0, t1) => {
    const b = make("button", { type: "button", title: "show in the timeline" }, text);
    b.onclick = () => { show(t0, t1); box.focus({ preventScroll: true }); };
    return b;
  };
  const longest = Math.max(1, ...data.operations.map((o) => total(o.mean)));
  table($("operations"), [
    { name: "operation", class: "text", value: (o) => o.name, cell: (o) => jump(o.name, o.start, o.end) },
    { name: "average tile", class: "bar", value: (o) => total(o.mean), cell: (o) => stack(o.mean, longest) },
    { name: "average", value: (o) => total(o.mean) },
    { name: "share", value: (o) => total(o.mean), cell: (o) => percent(total(o.mean) / run) },
    { name: "compute", value: (o) => o.mean.compute },
    { name: "exchange", value: (o) => o.mean.exchange },
    { name: "synchronization", value: (o) => o.mean.synchronization },
    { name: "path", value: (o) => o.path },
    { name: "tiles computing", value: (o) => o.tiles },
  ], data.operations);
  table($("barriers"), [
    { name: "phase", value: (b) => b.index, cell: (b) => jump(String(b.phase) + (b.epoch ? ` (epoch ${b.epoch})` : ""), b.first_arrival, b.last_leave) },
    { name: "operation", class: "text", value: (b) => b.operation, cell: (b) => b.operation },
    { name: "active tiles", value: (b) => b.active_tiles },
    { name: "last arrival", value: (b) => b.last_arrival - data.start },
    { name: "spread", value: (b) => b.entry_spread },
    { name: "after", value: (b) => b.after_arrival },
    { name: "scheduled", value: (b) => b.scheduled_horizon },
    { name: "over", value: (b) => b.overhead },
    { name: "last tile", value: (b) => b.last_tile, cell: (b) => tileName(b.index_of_last) },
  ], data.barriers.map((b, index) => ({ ...b, index, index_of_last: data.tiles.indexOf(b.last_tile) })));

  // ---- Histogram.

  (() => {
    const shares = data.tile_compute.map((c) => c / run), bins = new Array(20).fill(0), sorted = shares.slice().sort((a, b) => a - b);
    for (const s of shares) bins[Math.min(19, Math.floor(s * 20))]++;
    if (sorted.length) {
      $("tilestats").textContent = `Share of the run that a tile computes: least ${percent(sorted[0])}, median ${percent(sorted[sorted.length >> 1])}, most ${percent(sorted[sorted.length - 1])}.`;
    }
    const most = Math.max(1, ...bins);
    $("histogram").setAttribute("aria-label", "Tiles by share of compute: " + bins.map((n, i) => `${5 * i} to ${5 * i + 5} %: ${n}`).join(", "));
    bins.forEach((n, i) => {
      const bar = make("div", { class: "compute" });
      bar.style.height = (150 * n) / most + "px";
      $("histogram").append(make("div", { title: `${n} tiles compute ${5 * i} to ${5 * i + 5} % of the run` },
        make("span", {}, n ? cycles(n) : ""), bar, make("span", {}, String(5 * i))));
    });
  })();

  recolour();
  Object.assign(view, { t0: data.start, t1: data.end, r0: 0, r1: rows });
  const began = performance.now();
  draw();
  document.documentElement.dataset.ready = String(data.samples);
  document.documentElement.dataset.drawMs = (performance.now() - began).toFixed(1);
})();
