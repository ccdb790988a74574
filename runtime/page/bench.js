/* One step, operator by operator: when each ran, where the time went, and how close each came to the device's limits. */

/* Operators of a kind are named "linear_512x128x128": the kind is what comes before the sizes. */
function kind_of(name) {
	return name.replace(/_\d.*$/, "");
}
function read_step(data) {
	const events = data.traceEvents.filter((e) => e.ph === "X");
	const operators = events.filter((e) => e.cat === "operator");
	const time = new Map();
	for (const e of operators)
		time.set(kind_of(e.name), (time.get(kind_of(e.name)) || 0) + e.dur);
	const kinds = [...time.keys()].sort((a, b) => time.get(b) - time.get(a));
	const ranks = [...new Set(events.map((e) => e.pid))].sort((a, b) => a - b);
	const streams = [...new Set(operators.map((e) => e.tid))].sort((a, b) => a - b);
	return { events, operators, kinds, ranks, streams, about: data.otherData, end: Math.max(...events.map((e) => e.ts + e.dur)) };
}
function kind_color(s, name) {
	const i = s.kinds.indexOf(kind_of(name));
	return i < 9 ? series(i) : series(9);
}
function event_text(e) {
	const a = e.args, lines = [e.name];
	if (a.segment || a.layer !== undefined)
		lines.push(`${a.segment || ""}${a.layer !== undefined ? ` layer ${a.layer}` : ""}`);
	lines.push(`${seconds(e.dur * 1e-6)} at ${seconds(e.ts * 1e-6)}, rank ${e.pid}`);
	if (e.cat === "operator") {
		lines.push(`stream ${e.tid}`);
		if (a.FLOPs)
			lines.push(`${short(a.FLOPs)}FLOPs, ${short(a.FLOPs / e.dur * 1e6)}FLOP/s`);
		lines.push(`${bytes(a.bytes)}, ${short(a.bytes / e.dur * 1e6)}B/s`);
	}
	return lines.join("\n");
}

/* ---- the flame: for each rank and stream parts, segments and operators below one another, and waits ---- */

const LEVELS = ["part", "segment", "operator", "host"];
const ROW = 18, GAP = 10, LEFT = 76, TOP = 20;

function flame(s) {
	const lane = (e) => e.tid * LEVELS.length + LEVELS.indexOf(e.cat);
	const used = [...new Set(s.events.map(lane))].sort((a, b) => a - b), each = used.length * ROW + GAP;
	const top = (e) => TOP + s.ranks.indexOf(e.pid) * each + used.indexOf(lane(e)) * ROW;
	const rows = new Map(); /* by rank and level, in order of time */
	for (const e of s.events) {
		const y = top(e);
		rows.set(y, [...(rows.get(y) || []), e]);
	}
	rows.forEach((list) => list.sort((a, b) => a.ts - b.ts));
	const place = (v, t) => LEFT + ((t / s.end) - v.x0) / (v.x1 - v.x0) * (v.width - LEFT);
	function draw(c, v) {
		c.fillStyle = color("dim");
		for (const t of ticks(v.x0 * s.end, v.x1 * s.end, 8)) {
			c.fillText(seconds(t * 1e-6), place(v, t) + 3, TOP / 2);
			c.fillRect(place(v, t), TOP - 4, 1, 4);
		}
		for (const [y, list] of rows) {
			let last = -1;
			for (const e of list) {
				const x = Math.max(LEFT, place(v, e.ts)), end = Math.min(v.width, place(v, e.ts + e.dur));
				if (end < LEFT || x > v.width || (end - x < 0.5 && Math.round(x) === last))
					continue;
				last = Math.round(x);
				const on = v.item && v.item.key === e;
				c.fillStyle = on ? color("accent") : e.cat === "operator" ? kind_color(s, e.name) :
					e.cat === "host" ? color("warn") : color("line");
				c.fillRect(x, y, Math.max(0.6, end - x - 0.4), ROW - 2);
				if (end - x > 40) {
					c.fillStyle = e.cat === "operator" || e.cat === "host" || on ? color("panel") : color("text");
					c.fillText(fit_text(c, e.name, end - x - 8), x + 4, y + ROW / 2 - 1);
				}
			}
		}
		c.fillStyle = color("text");
		for (const pid of s.ranks)
			for (const tid of s.streams)
				c.fillText(`rank ${pid}${s.streams.length > 1 ? `.${tid}` : ""}`, 0, top({ pid, tid, cat: "operator" }) + ROW / 2 - 1);
	}
	function hit(x, y, v) {
		for (const [above, list] of rows)
			if (y >= above && y < above + ROW) {
				const e = list.find((one) => x >= place(v, one.ts) - 1 && x <= place(v, one.ts + one.dur) + 1);
				return e ? { key: e, text: event_text(e) } : null;
			}
		return null;
	}
	const v = figure({ label: "operators over time", height: TOP + s.ranks.length * each, left: LEFT, moves: "x", draw, hit });
	v.place_of = (e, t) => [place(v, t), top(e) + 0.4 * ROW];
	return v;
}

/* ---- sums over the step ---- */

function sums(s) {
	const by = new Map();
	for (const e of s.operators) {
		const o = by.get(e.name) || { name: e.name, calls: 0, us: 0, flops: 0, bytes: 0 };
		o.calls++;
		o.us += e.dur;
		o.flops += e.args.FLOPs;
		o.bytes += e.args.bytes;
		by.set(e.name, o);
	}
	return [...by.values()].sort((a, b) => b.us - a.us);
}

/* FLOPs a byte against FLOP/s, both logarithmic; below the two lines there is room. */
function roofline(s, list) {
	const points = list.filter((o) => o.flops > 0 && o.us > 0).map((o) =>
		({ o, x: Math.log10(o.flops / o.bytes), y: Math.log10(o.flops / o.us * 1e6), r: 3 + 14 * Math.sqrt(o.us / list[0].us) }));
	const fastest = Math.max(...list.map((o) => o.bytes / o.us * 1e6));
	const peak = s.about.peak > 0 ? s.about.peak : Math.max(...points.map((p) => 10 ** p.y));
	const top = Math.log10(peak) + 0.2;
	const x0 = Math.min(-1, ...points.map((p) => p.x)) - 0.2, x1 = Math.max(3, ...points.map((p) => p.x)) + 0.3;
	const y0 = Math.min(top - 3, ...points.map((p) => p.y)) - 0.2;
	const X = (v, x) => LEFT + (x - x0) / (x1 - x0) * (v.width - LEFT - 10);
	const Y = (v, y) => 10 + (top - y) / (top - y0) * (v.height - 40);
	function draw(c, v) {
		c.fillStyle = color("dim");
		for (let k = Math.ceil(x0); k <= x1; k++)
			c.fillText(`${short(10 ** k)}`, X(v, k) - 6, v.height - 18);
		for (let k = Math.ceil(y0); k <= top; k++) {
			c.fillText(`${short(10 ** k)}FLOP/s`, 0, Y(v, k));
			c.fillRect(LEFT, Y(v, k), v.width - LEFT - 10, 0.5);
		}
		c.fillText("FLOPs a byte", v.width / 2, v.height - 4);
		c.strokeStyle = color("text");
		c.beginPath();
		const knee = Math.log10(peak / fastest);
		c.moveTo(X(v, x0), Y(v, Math.max(y0, Math.log10(fastest) + x0)));
		c.lineTo(X(v, knee), Y(v, Math.log10(peak)));
		c.lineTo(X(v, x1), Y(v, Math.log10(peak)));
		c.stroke();
		for (const p of points) {
			c.globalAlpha = v.item && v.item.key === p ? 1 : 0.75;
			c.fillStyle = kind_color(s, p.o.name);
			c.beginPath();
			c.arc(X(v, p.x), Y(v, p.y), p.r, 0, 7);
			c.fill();
		}
		c.globalAlpha = 1;
	}
	function hit(x, y, v) {
		const p = points.filter((q) => Math.hypot(x - X(v, q.x), y - Y(v, q.y)) <= q.r + 2).pop();
		return p ? { key: p, text: `${p.o.name}\n${p.o.calls} calls, ${seconds(p.o.us * 1e-6)}\n${
			short(p.o.flops / p.o.us * 1e6)}FLOP/s, ${short(p.o.bytes / p.o.us * 1e6)}B/s, ${
			Number((p.o.flops / p.o.bytes).toPrecision(3))} FLOPs a byte` } : null;
	}
	const v = figure({ label: "roofline", height: 340, draw, hit });
	v.place_of = (name) => points.filter((p) => p.o.name === name).map((p) => [X(v, p.x), Y(v, p.y)])[0];
	return v;
}

function start() {
	const s = read_step(JSON.parse(document.getElementById("data").textContent)), list = sums(s);
	const total = list.reduce((sum, o) => sum + o.us, 0) || 1, flops = list.reduce((sum, o) => sum + o.flops, 0);
	const card = (name, value) => el("div", { class: "card" }, el("span", null, name), el("b", null, value));
	const f = flame(s), r = roofline(s, list);
	const section = (id, title, text, ...more) => el("section", { id, "aria-labelledby": `${id}-h` },
		el("h2", { id: `${id}-h` }, title), el("p", { class: "dim" }, text), more);
	const nav = el("nav", { "aria-label": "Sections" }, [["when", "When"], ["where", "Where"], ["roof", "Roofline"]]
		.map(([id, text]) => el("a", { href: `#${id}` }, text)));
	const main = el("main", { id: "main" },
		el("div", { class: "cards" }, card("trainer", s.about.trainer), card("target", s.about.target),
			card("ranks", commas(s.ranks.length)), card("this step", seconds(s.end * 1e-6)),
			card("of it in operators, a rank", seconds(total / s.ranks.length * 1e-6)),
			card("operators' rate, a rank", `${short(flops / total * 1e6)}FLOP/s`)),
		section("when", "When each operator ran", "A step in which the operators of a stream run one by one, so that each can be timed; training " +
			"overlaps their launches. Parts and segments are above the operators that they consist of, waits for other ranks below.",
			el("figure", null, f.controls, f.canvas, f.status, legend([...s.kinds.slice(0, 9).map((k, i) => [series(i), k]),
				...(s.kinds.length > 9 ? [[series(9), "others"]] : [])]))),
		section("where", "Where the time went", "The sum over all calls of an operator at one size, the longest first.",
			table("operators", [["operator", ""], ["calls", "n"], ["time", "n"], ["share", "n"], ["FLOP/s", "n"], ["B/s", "n"]],
				list.map((o) => [o.name, commas(o.calls), seconds(o.us * 1e-6), percent(o.us / total),
					o.flops ? short(o.flops / o.us * 1e6) : "", short(o.bytes / o.us * 1e6)]))),
		section("roof", "How close to the device's limits", s.about.peak > 0 ?
			"The level line is the data sheet's peak, the sloping one the fastest bytes of any operator here. A disc's size is its time." :
			"The lines are the fastest FLOPs and the fastest bytes of any operator here. A disc's size is its time.",
			el("figure", null, r.canvas, r.status)));
	document.title = `One step of ${s.about.trainer}`;
	document.body.prepend(el("a", { class: "skip", href: "#main" }, "Skip to the content"),
		el("header", { class: "top" }, el("h1", null, `One step of ${s.about.trainer}`), nav, theme_button()), main);
	follow_sections(nav, main);
	window.olmogen = { flame: f, roofline: r };
}
