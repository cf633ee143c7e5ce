// Draws the zoomable timeline. The data are shares of time in cells (see timeline/document.py); the visible window is in seconds.
"use strict";
(() => {
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const VALUE = new Uint8Array(128);
  [...DIGITS].forEach((digit, value) => { VALUE[digit.charCodeAt(0)] = value; });
  const TOP = 63;
  const INK = "#1a1f27", MUTED = "#4a5361", LINE = "#d9dde3", ACCENT = "#00429d", HATCH = "#9aa3af";
  const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
  const OVERVIEW = 30, AXIS = 24, STRIP = 3, NARROW = 560, STEP = 12, BUTTON_ZOOM = 2, PAN = 0.25;

  function decode(level, rows, series) {
    const cells = new Uint8Array(level.cells.length);
    for (let i = 0; i < cells.length; i++) cells[i] = VALUE[level.cells.charCodeAt(i)];
    return { from: level.from, to: level.to, n: level.n, width: (level.to - level.from) / level.n, cells, rows, series };
  }

  // Writes the mean shares of the cells [first, last) of a row into `sums`.
  function mean(level, row, first, last, sums) {
    sums.fill(0);
    for (let cell = first; cell < last; cell++) {
      const at = (cell * level.rows + row) * level.series;
      for (let k = 0; k < level.series; k++) sums[k] += level.cells[at + k];
    }
    for (let k = 0; k < level.series; k++) sums[k] /= TOP * (last - first);
  }

  // Returns a round distance between ticks that leaves room for their labels.
  function tickStep(seconds, room) {
    const raw = seconds / Math.max(room, 1);
    const bases = seconds > 600 ? [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400] : [];
    const base = bases.find((each) => each >= raw);
    if (base) return base;
    const power = 10 ** Math.floor(Math.log10(raw));
    return power * [1, 2, 5, 10].find((each) => each * power >= raw * 0.999);
  }

  function moment(seconds, step) {
    if (seconds >= 600 && step >= 1) {
      const whole = Math.round(seconds), rest = whole % 60;
      return rest ? `${Math.floor(whole / 60)} min ${rest} s` : `${Math.floor(whole / 60)} min`;
    }
    return `${seconds.toFixed(Math.min(Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)), 9))} s`;
  }

  function start(root) {
    const timeline = JSON.parse(root.dataset.timeline);
    const series = timeline.kinds.length + (timeline.background ? 1 : 0);
    const levels = timeline.levels.map((level) => decode(level, timeline.rows.length, series));
    levels.sort((a, b) => b.width - a.width);
    const whole = levels.find((level) => level.from === 0 && level.to === timeline.end);
    const least = 8 * levels[levels.length - 1].width;
    const canvas = root.querySelector("canvas");
    const tip = root.querySelector(".tip");
    const shownText = root.querySelector("output");
    const pen = canvas.getContext("2d");
    const view = { from: 0, to: timeline.end };
    let place = null, waiting = false, brush = null;

    function layout() {
      const width = Math.max(root.clientWidth, 200), narrow = width < NARROW;
      pen.font = FONT;
      const label = Math.max(...timeline.rows.map((row) => pen.measureText(row).width));
      const left = narrow ? 0 : Math.min(Math.ceil(label) + 10, 0.3 * width);
      const row = narrow ? 35 : timeline.rows.length > 24 ? 17 : 25;
      const first = OVERVIEW + AXIS;
      const height = first + row * timeline.rows.length + 4;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
      place = { width, height, narrow, left, row, first, ratio, room: width - left - 1, bar: narrow ? 17 : row - 4 };
      place.lift = narrow ? 15 : 2;
    }

    const x = (seconds) => place.left + (seconds - view.from) / (view.to - view.from) * place.room;
    const seconds = (px) => view.from + (px - place.left) / place.room * (view.to - view.from);
    const overviewX = (at) => place.left + at / timeline.end * place.room;
    const overviewSeconds = (px) => Math.min(Math.max((px - place.left) / place.room, 0), 1) * timeline.end;

    function hatched(kind) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6 * place.ratio;
      const ink = tile.getContext("2d");
      ink.scale(place.ratio, place.ratio);
      ink.fillStyle = kind.color;
      ink.fillRect(0, 0, 6, 6);
      ink.strokeStyle = HATCH;
      for (const shift of [-6, 0, 6]) {
        ink.moveTo(shift - 1, kind.hatch === "/" ? 7 : -1);
        ink.lineTo(shift + 7, kind.hatch === "/" ? -1 : 7);
      }
      ink.stroke();
      const pattern = pen.createPattern(tile, "repeat");
      pattern.setTransform(new DOMMatrix().scale(1 / place.ratio));
      return pattern;
    }

    // Returns the rectangles of bars, grouped by kind so that each color is set only once.
    function bars(level, from, to, toX, rows, top, height, stripTop) {
      const rects = Array.from({ length: series }, () => []);
      const sums = new Float64Array(series), total = new Float64Array(series);
      const perStep = (toX(timeline.step) - toX(0)) || 0;
      // If steps are too narrow to show their phases, two steps are mixed, so that nothing flickers.
      const widest = Math.max(1, perStep < STEP ? 2 * perStep : 0);
      const stride = Math.max(1, Math.floor(widest / ((toX(level.width) - toX(0)) || 1)));
      const begin = Math.max(0, Math.floor((from - level.from) / level.width / stride) * stride);
      const end = Math.min(level.n, Math.ceil((to - level.from) / level.width));
      const snap = (px) => Math.round(px * place.ratio) / place.ratio;
      const clip = (px) => Math.min(Math.max(px, place.left), place.width);
      for (let cell = begin; cell < end; cell += stride) {
        const next = Math.min(cell + stride, level.n);
        const left = snap(clip(toX(level.from + cell * level.width)));
        const right = Math.max(snap(clip(toX(level.from + next * level.width))), left + 1 / place.ratio);
        for (const [index, members] of rows.entries()) {
          total.fill(0);
          for (const row of members) {
            mean(level, row, cell, next, sums);
            for (let k = 0; k < series; k++) total[k] += sums[k] / members.length;
          }
          let y = top(index) + height;
          for (let k = 0; k < timeline.kinds.length; k++) {
            const high = total[k] * height;
            if (high > 0) rects[k].push(left, y - high, right - left, high);
            y -= high;
          }
          if (timeline.background && stripTop && total[series - 1] > 0) {
            rects[series - 1].push(left, stripTop(index), right - left, STRIP, total[series - 1]);
          }
        }
      }
      return rects;
    }

    function paint(rects, colors) {
      for (let k = 0; k < timeline.kinds.length; k++) {
        pen.fillStyle = colors[k];
        for (let i = 0; i < rects[k].length; i += 4) pen.fillRect(rects[k][i], rects[k][i + 1], rects[k][i + 2], rects[k][i + 3]);
      }
      if (!timeline.background) return;
      pen.fillStyle = timeline.background.color;
      const strips = rects[series - 1];
      for (let i = 0; i < strips.length; i += 5) {
        pen.globalAlpha = strips[i + 4];
        pen.fillRect(strips[i], strips[i + 1], strips[i + 2], strips[i + 3]);
      }
      pen.globalAlpha = 1;
    }

    function draw() {
      waiting = false;
      const { width, height, left, row, first, room, bar, lift, ratio } = place;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.fillStyle = "#fff";
      pen.fillRect(0, 0, width, height);
      const colors = timeline.kinds.map((kind) => (kind.hatch ? hatched(kind) : kind.color));
      drawOverview(colors);
      drawAxis();
      const high = timeline.background ? bar - STRIP - 1 : bar;
      const top = (index) => first + index * row + lift;
      const rows = timeline.rows.map((_, index) => [index]);
      pen.save();
      pen.beginPath();
      pen.rect(left, first, room, height - first);
      pen.clip();
      for (const level of levels) {
        const from = Math.max(view.from, level.from), to = Math.min(view.to, level.to);
        // Levels are sorted from coarse to fine: a finer window covers coarser cells if its own are wide enough to be distinguished.
        if (to <= from || (level !== whole && (x(level.width) - x(0)) < 0.2)) continue;
        pen.fillStyle = "#fff";
        pen.fillRect(x(from), first, x(to) - x(from), height - first);
        paint(bars(level, from, to, x, rows, top, high, (index) => top(index) + high + 1), colors);
      }
      pen.restore();
      drawMarks();
      drawNames();
    }

    // Names are drawn last and on white, so that outlines do not cross them.
    function drawNames() {
      const { width, left, row, first, bar, lift, narrow } = place;
      pen.font = FONT;
      pen.textBaseline = "middle";
      pen.textAlign = narrow ? "left" : "right";
      pen.lineJoin = "round";
      pen.lineWidth = 4;
      pen.strokeStyle = "#fff";
      pen.fillStyle = INK;
      timeline.rows.forEach((name, index) => {
        const at = [narrow ? 0 : left - 8, first + index * row + (narrow ? 8 : lift + bar / 2), narrow ? width : left - 8];
        pen.strokeText(name, ...at);
        pen.fillText(name, ...at);
      });
    }

    function drawOverview(colors) {
      const all = [timeline.rows.map((_, index) => index)];
      const band = OVERVIEW - 10;
      paint(bars(whole, 0, timeline.end, overviewX, all, () => 0, band, null), colors);
      const from = overviewX(view.from), to = Math.max(overviewX(view.to), from + 2);
      pen.fillStyle = "rgba(255,255,255,.72)";
      pen.fillRect(place.left, 0, from - place.left, band);
      pen.fillRect(to, 0, place.width - to, band);
      pen.lineWidth = 2;
      pen.setLineDash([]);
      pen.strokeStyle = INK;
      pen.strokeRect(from + 1, 1, Math.max(to - from - 2, 1), band - 2);
      pen.fillStyle = ACCENT;
      for (const mark of timeline.marks.filter((each) => !each.whole_run)) {
        pen.fillRect(overviewX(mark.from), band + 3, Math.max(overviewX(mark.to) - overviewX(mark.from), 3), 3);
      }
    }

    function drawAxis() {
      const length = view.to - view.from, step = tickStep(length, place.room / 90);
      pen.font = FONT;
      pen.textBaseline = "alphabetic";
      pen.lineWidth = 1;
      for (let at = Math.ceil(view.from / step - 1e-9) * step; at <= view.to + 1e-9 * step; at += step) {
        const px = Math.round(x(at)) + 0.5;
        pen.strokeStyle = LINE;
        pen.beginPath();
        pen.moveTo(px, OVERVIEW + AXIS - 6);
        pen.lineTo(px, place.height);
        pen.stroke();
        const text = moment(at, step), half = pen.measureText(text).width / 2;
        pen.fillStyle = MUTED;
        pen.textAlign = "center";
        pen.fillText(text, Math.min(Math.max(px, place.left + half), place.width - half), OVERVIEW + AXIS - 9);
      }
    }

    function drawMarks() {
      for (const mark of timeline.marks) {
        if (mark.to < view.from || mark.from > view.to) continue;
        const from = Math.max(x(mark.from), place.left - 4), to = Math.min(x(mark.to), place.width + 4);
        for (const [firstRow, lastRow] of mark.rows) {
          const top = place.first + firstRow * place.row + (place.narrow ? 13 : 0);
          const bottom = place.first + (lastRow + 1) * place.row - (place.narrow ? 0 : 1);
          for (const [color, thickness, dashes] of [["#fff", 4, []], [ACCENT, 2, mark.whole_run ? [] : [6, 3]]]) {
            pen.strokeStyle = color;
            pen.lineWidth = thickness;
            pen.setLineDash(dashes);
            pen.save();
            pen.beginPath();
            pen.rect(place.left - 1, place.first - 1, place.room + 2, place.height - place.first + 1);
            pen.clip();
            pen.strokeRect(from, top, Math.max(to - from, 3), bottom - top);
            pen.restore();
          }
        }
      }
      pen.setLineDash([]);
    }

    function show(from, to) {
      const length = Math.min(Math.max(to - from, Math.min(least, timeline.end)), timeline.end);
      const middle = (from + to) / 2;
      view.from = Math.min(Math.max(middle - length / 2, 0), timeline.end - length);
      view.to = view.from + length;
      const step = length / 100;
      shownText.value = length >= timeline.end * 0.9999
        ? `The whole run, ${moment(timeline.end, step)}`
        : `${moment(view.from, step)} to ${moment(view.to, step)} of ${moment(timeline.end, timeline.end / 100)}`;
      tip.hidden = true;
      if (!waiting) requestAnimationFrame(draw);
      waiting = true;
    }

    function zoom(factor, around = (view.from + view.to) / 2) {
      const length = Math.min(Math.max((view.to - view.from) / factor, Math.min(least, timeline.end)), timeline.end);
      const part = (around - view.from) / (view.to - view.from);
      show(around - part * length, around + (1 - part) * length);
    }

    const pan = (part) => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
    const reset = () => show(0, timeline.end);

    // Returns the lines of text about a point: the rank's activity, and the findings marked there.
    function say(px, py) {
      const marks = timeline.marks.filter((mark) => {
        const at = py < OVERVIEW ? overviewSeconds(px) : seconds(px);
        const row = Math.floor((py - place.first) / place.row);
        const there = at >= mark.from && at <= mark.to;
        return there && (py < OVERVIEW ? !mark.whole_run : mark.rows.some(([first, last]) => row >= first && row <= last));
      }).map((mark) => mark.text);
      const row = Math.floor((py - place.first) / place.row);
      if (py < OVERVIEW || row < 0 || row >= timeline.rows.length || px < place.left) return py < OVERVIEW ? marks : [];
      const at = seconds(px);
      const level = levels.filter((each) => at >= each.from && at < each.to).pop() || whole;
      const cell = Math.min(Math.max(Math.floor((at - level.from) / level.width), 0), level.n - 1);
      const pixel = (view.to - view.from) / place.room;
      const around = Math.max(0, Math.ceil(pixel / level.width / 2) - 1);
      const first = Math.max(0, cell - around), last = Math.min(level.n, cell + around + 1);
      const sums = new Float64Array(series);
      mean(level, row, first, last, sums);
      const kinds = timeline.kinds.map((kind, k) => [kind.label, sums[k]]).filter(([, share]) => share > 0.005);
      kinds.sort((a, b) => b[1] - a[1]);
      const unrecorded = 1 - timeline.kinds.reduce((sum, _, k) => sum + sums[k], 0);
      if (unrecorded > 0.02) kinds.push(["not recorded", unrecorded]);
      if (timeline.background && sums[series - 1] > 0.005) kinds.push([timeline.background.label, sums[series - 1]]);
      const step = level.width * (last - first) / 2;
      const when = `${moment(level.from + first * level.width, step)} to ${moment(level.from + last * level.width, step)}`;
      return [timeline.rows[row], when, ...kinds.map(([label, share]) => `${label} ${Math.round(100 * share)} %`), ...marks];
    }

    function point(px, py) {
      const lines = say(px, py);
      tip.hidden = lines.length === 0;
      if (!lines.length) return;
      tip.replaceChildren(...lines.map((line, index) => {
        const part = document.createElement(index ? "span" : "strong");
        part.textContent = line;
        return part;
      }));
      const wide = tip.offsetWidth, high = tip.offsetHeight, top = canvas.offsetTop;
      tip.style.left = `${Math.min(Math.max(px - wide / 2, 0), place.width - wide)}px`;
      tip.style.top = `${py > high + 14 ? top + py - high - 12 : top + py + 18}px`;
    }

    const pointers = new Map();
    const local = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };

    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const [px, py] = local(event);
      pointers.set(event.pointerId, { px, py, moved: false });
      if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
      brush = py < OVERVIEW ? overviewSeconds(px) : null;
    });

    canvas.addEventListener("pointermove", (event) => {
      const [px, py] = local(event), before = pointers.get(event.pointerId);
      if (!before) {
        if (event.pointerType !== "touch") point(px, py);
        return;
      }
      const moved = before.moved || Math.hypot(px - before.px, py - before.py) > 4;
      if (!moved) return;
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const was = Math.abs(before.px - other.px), now = Math.abs(px - other.px);
        if (was > 10 && now > 10) zoom(now / was, seconds((px + other.px) / 2));
      } else if (brush !== null) {
        const at = overviewSeconds(px);
        show(Math.min(brush, at), Math.max(brush, at));
      } else {
        const shift = (before.px - px) / place.room * (view.to - view.from);
        show(view.from + shift, view.to + shift);
      }
      pointers.set(event.pointerId, { px, py, moved });
    });

    function release(event) {
      const before = pointers.get(event.pointerId);
      pointers.delete(event.pointerId);
      if (event.type === "pointerup" && before && !before.moved && !pointers.size) point(before.px, before.py);
      if (!pointers.size) brush = null;
    }
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => { if (!pointers.size) tip.hidden = true; });

    // The wheel scrolls the page until the timeline has the focus, so that it does not trap readers.
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / place.room);
      else zoom(2 ** (-event.deltaY / (event.ctrlKey ? 100 : 300)), seconds(Math.max(local(event)[0], place.left)));
    }, { passive: false });

    const KEYS = {
      "+": () => zoom(BUTTON_ZOOM), "=": () => zoom(BUTTON_ZOOM), "-": () => zoom(1 / BUTTON_ZOOM),
      ArrowLeft: () => pan(-PAN), ArrowRight: () => pan(PAN), Home: reset, 0: reset, Escape: () => canvas.blur(),
    };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
      event.preventDefault();
      KEYS[event.key]();
    });

    const DO = {
      in: () => zoom(BUTTON_ZOOM), out: () => zoom(1 / BUTTON_ZOOM),
      earlier: () => pan(-PAN), later: () => pan(PAN), whole: reset,
    };
    root.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.do) DO[button.dataset.do]();
      else show(Number(button.dataset.from), Number(button.dataset.to));
    });

    root.hidden = false;
    root.previousElementSibling.hidden = true;
    layout();
    reset();
    new ResizeObserver(() => {
      if (Math.max(root.clientWidth, 200) === place.width) return;
      layout();
      show(view.from, view.to);
    }).observe(root);
  }

  for (const root of document.querySelectorAll(".timeline")) start(root);
})();
