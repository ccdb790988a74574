/* What all pages share: elements, numbers, hover text, tables beside figures, and canvases that one can move in. */
"use strict";

/* ---- elements ---- */

/* el("p", { class: "dim" }, "text", other): attributes with a function are listeners. */
function el(name, attributes, ...children) {
	return fill(document.createElement(name), attributes, children);
}
function svg(name, attributes, ...children) {
	return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}
function fill(e, attributes, children) {
	for (const [key, value] of Object.entries(attributes || {})) {
		if (typeof value === "function")
			e.addEventListener(key, value);
		else if (value !== undefined && value !== null && value !== false)
			e.setAttribute(key, value === true ? "" : value);
	}
	e.append(...children.flat().filter((c) => c !== null && c !== undefined));
	return e;
}

/* A labelled choice of [value, text]; change is called with the value. */
function choice(label, options, value, change) {
	const select = el("select", { change: () => change(select.value) },
		options.map(([v, text]) => el("option", { value: v, selected: String(v) === String(value) }, text)));
	return el("label", null, label, select);
}
function toggle(label, on, change) {
	const box = el("input", { type: "checkbox", change: () => change(box.checked) });
	box.checked = on;
	return el("label", null, box, label);
}
/* Buttons of which one is pressed. */
function buttons(label, options, value, change) {
	const all = options.map(([v, text]) =>
		el("button", { type: "button", "aria-pressed": String(v === value), click: () => set(v) }, text));
	function set(v) {
		all.forEach((b, i) => b.setAttribute("aria-pressed", String(options[i][0] === v)));
		change(v);
	}
	return el("span", { class: "bar", role: "group", "aria-label": label }, all);
}
function legend(items) {
	return el("ul", { class: "legend" }, items.map(([color, text]) =>
		el("li", null, el("span", { class: "swatch", style: `background:${color}` }), text)));
}

/* ---- numbers ---- */

function commas(n) {
	return Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}
/* As olmogen writes sizes: "1.50 GiB". */
function bytes(n) {
	const unit = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
	let u = 0;
	for (; n >= 1024 && u + 1 < unit.length; u++)
		n /= 1024;
	return u ? `${n.toFixed(2)} ${unit[u]}` : `${n} bytes`;
}
function short(n, digits) {
	const unit = ["", " K", " M", " G", " T", " P", " E", " Z"];
	let u = 0;
	for (; Math.abs(n) >= 1000 && u + 1 < unit.length; u++)
		n /= 1000;
	return Number(n.toPrecision(digits || 4)) + unit[u];
}
function seconds(s) {
	if (!(s > 0))
		return "0 s";
	const [scale, unit] = s >= 1 ? [1, "s"] : s >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
	return `${Number((s * scale).toPrecision(4))} ${unit}`;
}
function percent(x) {
	return `${(100 * x).toFixed(1)} %`;
}
/* "0..3, 8" */
function ranges(list) {
	const out = [];
	for (let i = 0, j; i < list.length; i = j + 1) {
		for (j = i; j + 1 < list.length && list[j + 1] === list[j] + 1;)
			j++;
		out.push(j > i ? `${list[i]}..${list[j]}` : `${list[i]}`);
	}
	return out.join(", ");
}

/* ---- colours: canvases ask for those of the theme ---- */

const colors = {};
let shade = null;
function color(name) {
	if (!colors[name]) {
		/* a variable is what was written; an element has what it comes to in this theme */
		shade = shade || document.body.appendChild(el("i", { hidden: true }));
		shade.style.color = `var(--${name})`;
		colors[name] = getComputedStyle(shade).color;
	}
	return colors[name];
}
function series(i) {
	return color(`c${i % 10}`);
}
const drawings = new Set();
function redraw_all() {
	for (const name of Object.keys(colors))
		delete colors[name];
	drawings.forEach((d) => d());
}
function theme_button() {
	const names = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };
	const order = Object.keys(names);
	const b = el("button", { type: "button", click: () => set(order[(order.indexOf(at) + 1) % 3]) });
	let at = "auto";
	function set(name) {
		at = name;
		b.textContent = names[name];
		if (name === "auto")
			delete document.documentElement.dataset.theme;
		else
			document.documentElement.dataset.theme = name;
		redraw_all();
	}
	set("auto");
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw_all);
	return b;
}

/* ---- hover text ---- */

let tip = null;
function show_tip(text, x, y) {
	tip = tip || document.body.appendChild(el("div", { id: "tip", role: "tooltip" }));
	tip.style.visibility = text ? "visible" : "hidden";
	if (!text)
		return;
	if (tip.textContent !== text)
		tip.textContent = text;
	const w = tip.offsetWidth, h = tip.offsetHeight;
	tip.style.left = `${Math.max(4, x + 14 + w > innerWidth ? x - 12 - w : x + 14)}px`;
	tip.style.top = `${Math.max(4, y + 16 + h > innerHeight ? y - 12 - h : y + 16)}px`;
}
/* An element that says more of itself under the pointer and with the focus. */
function with_tip(e, text) {
	const at = () => e.getBoundingClientRect();
	e.addEventListener("pointermove", (v) => show_tip(text(), v.clientX, v.clientY));
	e.addEventListener("pointerleave", () => show_tip(""));
	e.addEventListener("focus", () => show_tip(text(), at().left, at().bottom));
	e.addEventListener("blur", () => show_tip(""));
	return e;
}

/* ---- tables ---- */

/* heads: [text, "n" for numbers]; rows are asked for when the table is opened. */
function table(caption, heads, rows) {
	return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
		el("table", null, el("caption", null, caption),
			heads.some(([text]) => text) ? el("thead", null, el("tr", null, heads.map(([text, kind]) =>
				el("th", { scope: "col", class: kind }, text)))) : "",
			el("tbody", null, rows.map((row) => el("tr", null, row.map((cell, i) =>
				el(i ? "td" : "th", { class: heads[i][1], scope: i ? null : "row" },
					cell === undefined || cell === null ? "" : cell)))))));
}
const MOST_ROWS = 1000;
function table_view(caption, heads, rows) {
	const box = el("details", { "aria-label": caption, toggle: () => box.open ? show() : box.lastChild.replaceChildren() },
		el("summary", null, `Table: ${caption}`), el("div"));
	function show() {
		const all = rows(), cut = all.length > MOST_ROWS;
		box.lastChild.replaceChildren(table(cut ? `${caption}: the first ${commas(MOST_ROWS)} of ${
			commas(all.length)} rows` : caption, heads, cut ? all.slice(0, MOST_ROWS) : all));
	}
	box.update = () => box.open && show();
	return box;
}

/* ---- canvases ---- */

/*
 * A canvas that is drawn anew when its size, theme or view changes. o: label; height; draw(c, view); hit(x, y) gives what
 * is there, an object with text; picked(item); changed(view), that it moved; key(event), which gives whether it was one of its own. With o.moves "x" or
 * "xy" one can zoom and pan: view.x0 .. x1 and y0 .. y1 are the part of 0 .. 1 that is seen.
 */
function figure(o) {
	const canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": o.label, class: o.moves ? "moves" : "" });
	const status = el("div", { class: "status", role: "status", "aria-live": "polite" });
	const view = { x0: 0, x1: 1, y0: 0, y1: 1, width: 0, height: 0, item: null, canvas, status };
	const context = canvas.getContext("2d");
	const left = o.left || 0;
	let wanted = false, drag = null;

	function draw() {
		wanted = false;
		const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
		const height = typeof o.height === "function" ? o.height(width) : o.height;
		if (!width)
			return;
		if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
			canvas.style.height = `${height}px`;
			canvas.width = Math.round(width * ratio);
			canvas.height = Math.round(height * ratio);
		}
		view.width = width;
		view.height = height;
		context.setTransform(ratio, 0, 0, ratio, 0, 0);
		context.clearRect(0, 0, width, height);
		context.font = "12px system-ui, sans-serif";
		context.textBaseline = "middle";
		o.draw(context, view);
		view.frames = (view.frames || 0) + 1;
	}
	view.redraw = () => {
		if (!wanted)
			requestAnimationFrame(draw);
		wanted = true;
	};
	view.say = (text) => {
		if (status.textContent !== text)
			status.textContent = text;
	};
	function set_item(item, x, y) {
		show_tip(item ? item.text : "", x, y);
		view.say(item ? item.text.replace(/\n/g, "; ") : "");
		if (item !== view.item && !(item && view.item && item.key === view.item.key)) {
			view.item = item;
			view.redraw();
		}
	}
	/* What is at a place of the screen. */
	function at(event) {
		const box = canvas.getBoundingClientRect();
		return [event.clientX - box.left, event.clientY - box.top];
	}
	function clamp(axis) {
		const a = `${axis}0`, b = `${axis}1`, size = Math.min(1, view[b] - view[a]);
		view[a] = Math.min(Math.max(0, view[a]), 1 - size);
		view[b] = view[a] + size;
	}
	function changed() {
		view.redraw();
		if (o.changed)
			o.changed(view);
	}
	view.move = (dx, dy) => {
		const w = view.x1 - view.x0, h = view.y1 - view.y0;
		view.x0 += dx * w; view.x1 += dx * w;
		if (o.moves === "xy") {
			view.y0 += dy * h; view.y1 += dy * h;
		}
		clamp("x"); clamp("y");
		changed();
	};
	view.zoom = (factor, fx, fy) => {
		for (const [axis, f] of o.moves === "xy" ? [["x", fx], ["y", fy]] : [["x", fx]]) {
			const a = `${axis}0`, b = `${axis}1`, size = view[b] - view[a];
			const wanted_size = Math.min(1, Math.max(size * factor, o.least || 1e-7));
			view[a] += (size - wanted_size) * f;
			view[b] = view[a] + wanted_size;
			clamp(axis);
		}
		changed();
	};
	view.show = (x0, x1, y0, y1) => {
		Object.assign(view, { x0, x1, y0: y0 === undefined ? 0 : y0, y1: y1 === undefined ? 1 : y1 });
		changed();
	};
	canvas.addEventListener("pointermove", (event) => {
		const [x, y] = at(event);
		if (drag) {
			view.move((drag[0] - x) / (view.width - left), (drag[1] - y) / view.height);
			drag = [x, y];
			return;
		}
		set_item(o.hit ? o.hit(x, y, view) : null, event.clientX, event.clientY);
	});
	canvas.addEventListener("pointerleave", () => set_item(null));
	canvas.addEventListener("pointerdown", (event) => {
		if (o.moves && event.button === 0) {
			drag = at(event);
			view.pressed = drag;
			canvas.setPointerCapture(event.pointerId);
		}
	});
	canvas.addEventListener("pointerup", () => { drag = null; });
	canvas.addEventListener("pointercancel", () => { drag = null; });
	canvas.addEventListener("click", (event) => {
		const [x, y] = at(event), from = view.pressed || [x, y];
		if (o.picked && Math.hypot(x - from[0], y - from[1]) < 4)
			o.picked(o.hit(x, y, view));
	});
	/* the wheel scrolls the page, but in a figure that has the focus, or with a key */
	canvas.addEventListener("wheel", (event) => {
		if (!o.moves || (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey))
			return;
		event.preventDefault();
		const [x, y] = at(event);
		if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
			view.move((event.deltaX || event.deltaY) / view.width, 0);
		else
			view.zoom(Math.exp(event.deltaY * 0.002), Math.max(0, (x - left) / (view.width - left)), y / view.height);
	}, { passive: false });
	canvas.addEventListener("keydown", (event) => {
		const moves = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
		let done = o.key ? o.key(event, view) : false;
		if (!done && o.moves && !event.ctrlKey && !event.metaKey) {
			done = true;
			if (event.key === "+" || event.key === "=")
				view.zoom(1 / 1.4, 0.5, 0.5);
			else if (event.key === "-")
				view.zoom(1.4, 0.5, 0.5);
			else if (event.key === "0")
				view.show(0, 1, 0, 1);
			else if (moves[event.key] && (o.moves === "xy" || !moves[event.key][1]))
				view.move(...moves[event.key]);
			else
				done = false;
		}
		if (done)
			event.preventDefault();
	});
	new ResizeObserver(view.redraw).observe(canvas);
	drawings.add(view.redraw);
	view.controls = o.moves ? el("span", { class: "bar", role: "group", "aria-label": `View of ${o.label}` },
		el("button", { type: "button", "aria-label": "Zoom in", click: () => view.zoom(1 / 1.6, 0.5, 0.5) }, "+"),
		el("button", { type: "button", "aria-label": "Zoom out", click: () => view.zoom(1.6, 0.5, 0.5) }, "−"),
		el("button", { type: "button", click: () => view.show(0, 1, 0, 1) }, "Show all"),
		el("span", { class: "dim" }, "drag to move; with the focus: wheel, arrows, + − 0")) : null;
	return view;
}

/* Ticks at round numbers, at most so many. */
function ticks(from, to, most) {
	const span = to - from, out = [];
	if (!(span > 1e-9 * Math.max(Math.abs(from), Math.abs(to))))
		return [from];
	let step = 10 ** Math.floor(Math.log10(span / most));
	for (const f of [1, 2, 5, 10])
		if (span / (step * f) <= most) {
			step *= f;
			break;
		}
	for (let t = Math.ceil(from / step); t * step <= to + step * 1e-9; t++)
		out.push(Number((t * step).toPrecision(12)));
	return out;
}

/* A text, cut to a width. */
function fit_text(c, text, width) {
	if (c.measureText(text).width <= width)
		return text;
	let n = Math.floor(text.length * width / c.measureText(text).width);
	while (n > 0 && c.measureText(`${text.slice(0, n)}…`).width > width)
		n--;
	return n > 1 ? `${text.slice(0, n)}…` : "";
}

/* The link of the section that is on the screen stands out. */
function follow_sections(nav, main) {
	const links = new Map([...nav.querySelectorAll("a")].map((a) => [a.hash.slice(1), a]));
	const seen = new IntersectionObserver((all) => {
		for (const e of all)
			if (e.isIntersecting) {
				links.forEach((a) => { a.classList.remove("on"); a.removeAttribute("aria-current"); });
				const a = links.get(e.target.id);
				if (a) {
					a.classList.add("on");
					a.setAttribute("aria-current", "true");
				}
			}
	}, { rootMargin: "-20% 0px -70% 0px" });
	main.querySelectorAll("section").forEach((s) => seen.observe(s));
}

/* Makes what a section shows when it comes near the screen, so that the page is there at once. */
function when_near(box, make) {
	const seen = new IntersectionObserver((all) => {
		if (all.some((e) => e.isIntersecting)) {
			seen.disconnect();
			make();
		}
	}, { rootMargin: "600px" });
	seen.observe(box);
}
