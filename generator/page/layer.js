/* A layer as a graph of launches, with what each costs, and the roofline of the device. */

function shape_text(p, name) {
	const t = p.tensors.get(name);
	return t ? `${t.role} [${t.dims.join(", ")}]` : "";
}
/* Of one call: where its time goes by the device's peaks. */
function bound(p, l) {
	if (!(p.tflops > 0))
		return "";
	if (!l.flops)
		return "moves bytes only";
	return l.flops / (p.tflops * 1e12) > l.moved / (p.memory_gbs * 1e9) ? "bound by multiplying" : "bound by memory";
}

function launch_rows(p, st, l) {
	const b = (name) => st.buffers.get(name), k = p.kernels.get(l.kernel), rows = [];
	rows.push(["op", l.text]);
	rows.push(["kernel", k ? `${l.kernel} of ${k.file}${k.where ? `, chosen because ${k.where}` : ""}` : `none: ranks do it together, ${l.kernel}`]);
	for (const name of l.in)
		rows.push([`reads ${name}`, `${shape_text(p, name)}${b(name) ? `, ${bytes(b(name).bytes)} of ${b(name).region}` : ""}`]);
	for (const o of l.out)
		rows.push([`${o.adds ? "adds to" : "writes"} ${o.name}`, `${shape_text(p, o.name)}${
			b(o.name) ? `, ${bytes(b(o.name).bytes)} of ${b(o.name).region}` : ""}`]);
	if (l.ws_bytes)
		rows.push(["workspace", bytes(l.ws_bytes)]);
	rows.push(["useful FLOPs", commas(l.flops)], ["bytes moved", commas(l.moved)]);
	if (l.flops)
		rows.push(["FLOPs a byte", Number((l.flops / l.moved).toPrecision(4))]);
	if (l.time > 0)
		rows.push(["expected time", `${seconds(l.time)}, ${bound(p, l)}`],
			["rate", `${l.flops ? `${(l.flops / l.time / 1e12).toFixed(1)} TFLOP/s, ` : ""}${(l.moved / l.time / 1e9).toFixed(0)} GB/s`]);
	rows.push(["stream", `${l.stream}${l.after.length ? `, after event ${l.after.join(", ")}` : ""}${l.event ? `, then event ${l.event}` : ""}`]);
	return rows;
}

/* Launches in rows such that each stands below what it reads. */
function lay_out(list) {
	const writer = new Map(), edges = [];
	list.forEach((l, i) => {
		l.level = 0;
		for (const name of [...l.in, ...l.out.filter((o) => o.adds).map((o) => o.name)])
			if (writer.has(name)) {
				edges.push({ from: writer.get(name), to: i, name });
				l.level = Math.max(l.level, list[writer.get(name)].level + 1);
			}
		l.out.forEach((o) => writer.set(o.name, i));
	});
	/* what reads nothing of the segment's stands just above its first reader */
	for (let i = list.length - 1; i >= 0; i--) {
		const readers = edges.filter((e) => e.from === i).map((e) => list[e.to].level);
		if (readers.length && !edges.some((e) => e.to === i))
			list[i].level = Math.min(...readers) - 1;
	}
	const rows = [];
	list.forEach((l, i) => (rows[l.level] = rows[l.level] || []).push(i));
	for (let k = 1; k < rows.length; k++) { /* by the mean column of what they read */
		const mean = (i) => {
			const from = edges.filter((e) => e.to === i).map((e) => rows[list[e.from].level].indexOf(e.from) - (rows[list[e.from].level].length - 1) / 2);
			return from.length ? from.reduce((a, b) => a + b, 0) / from.length : 0;
		};
		if (rows[k])
			rows[k].sort((a, b) => mean(a) - mean(b));
	}
	return { rows: rows.filter(Boolean), edges };
}

function layer(p, box) {
	const names = [...new Set(p.stages.flatMap((st) => [...st.programs.keys()]))];
	const main = names.find((n) => p.kinds.some((k) => k.experts && n === `${k.name} forward`)) ||
		names.find((n) => p.kinds.some((k) => n === `${k.name} forward`)) || names[0];
	const graph = el("div", { class: "graph" }), about = el("div"), roof = el("div"), rows = el("div");
	let st, list, chosen = -1, roofline = null;

	function set(name) {
		st = p.stages.find((s) => s.programs.has(name));
		list = st.programs.get(name);
		chosen = -1;
		draw_graph(name);
		rows.replaceChildren(table_view(`launches of ${name}`, [["", "n"], ["kernel", ""], ["FLOPs", "n"], ["bytes", "n"],
			["expected", "n"], ["part", ""], ["op", ""]], () => list.map((l, i) => [i, l.kernel, commas(l.flops), commas(l.moved),
			l.time > 0 ? seconds(l.time) : "", p.parts[l.part] || "", l.text])));
		choose(list.reduce((most, l, i) => l.time > list[most].time || (!list[most].time && l.flops > list[most].flops) ? i : most, 0));
	}
	function draw_graph(name) {
		const { rows: levels, edges } = lay_out(list), w = 244, h = 46, gx = 26, gy = 34;
		const cols = Math.max(...levels.map((r) => r.length)), width = cols * (w + gx), height = levels.length * (h + gy);
		const total = list.reduce((a, l) => a + l.time, 0), work = list.reduce((a, l) => a + l.flops, 0);
		levels.forEach((r, y) => r.forEach((i, x) => {
			list[i].x = (cols - r.length) * (w + gx) / 2 + x * (w + gx) + gx / 2;
			list[i].y = y * (h + gy) + 8;
		}));
		const lines = edges.map((e) => {
			const a = list[e.from], b = list[e.to], x0 = a.x + w / 2, y0 = a.y + h, x1 = b.x + w / 2, y1 = b.y, bend = Math.min(60, (y1 - y0) / 2);
			const size = st.buffers.get(e.name);
			return with_tip(svg("path", { class: "edge", d: `M${x0},${y0} C${x0},${y0 + bend} ${x1},${y1 - bend} ${x1},${y1}`,
				"data-from": e.from, "data-to": e.to }), () => `${e.name}\n${shape_text(p, e.name)}${size ? `, ${bytes(size.bytes)}` : ""}`);
		});
		const nodes = list.map((l, i) => {
			const share = total > 0 ? l.time / total : work ? l.flops / work : 0, part = l.time > 0 ? l.part : l.flops ? 0 : 2;
			const cost = [l.time > 0 ? seconds(l.time) : "", l.flops ? `${short(l.flops, 3)}FLOP` : "", bytes(l.moved)].filter(Boolean).join(" · ");
			return with_tip(svg("g", { class: "node", tabindex: "0", role: "button", "data-i": i, transform: `translate(${l.x},${l.y})`,
				"aria-label": `${i}: ${l.op}, ${cost}`, click: () => choose(i), focus: () => choose(i),
				keydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); choose(i); } } },
				svg("rect", { width: w, height: h, rx: 6 }),
				svg("rect", { class: "share", x: 1, y: h - 5, rx: 2, width: Math.max(0, (w - 2) * share), height: 4, style: `fill:var(--c${part})` }),
				svg("text", { x: 9, y: 18, class: "op" }, `${i}  ${l.op}`), svg("text", { x: 9, y: 34, class: "dim" }, cost)),
				() => `${l.text}${l.time > 0 ? `\n${percent(share)} of this phase, ${bound(p, l)}` : ""}`);
		});
		graph.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Launches of ${name}` }, lines, nodes));
	}
	function choose(i) {
		if (i === chosen)
			return;
		chosen = i;
		graph.querySelectorAll(".node").forEach((n) => n.classList.toggle("on", Number(n.dataset.i) === i));
		graph.querySelectorAll(".edge").forEach((e) => e.classList.toggle("on", [e.dataset.from, e.dataset.to].includes(String(i))));
		about.replaceChildren(table(`Launch ${i}: ${list[i].op}`, [["", ""], ["", ""]], launch_rows(p, st, list[i])));
		if (roofline)
			roofline.redraw();
	}

	box.append(el("div", { class: "bar" }, choice("segment and phase", names.map((n) => {
		const s = p.segment.get(n.split(" ")[0]);
		return [n, s && s.layers.length ? `${n}, layers ${ranges(s.layers)}` : n];
	}), main, set)),
	el("p", { class: "dim" }, "Each box is a launch of a kernel, each line a tensor that goes from one to the next. The coloured foot ",
		p.step > 0 ? "is its share of the phase's expected time." : "is its share of the phase's FLOPs; no rates are known of this target."),
	el("div", { class: "beside" }, el("figure", null, el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Graph of launches" }, graph),
		legend(p.parts.slice(0, 3).map((n, i) => [`var(--c${i})`, n]))), el("div", null, about, roof)), rows);
	if (p.tflops > 0 && p.step > 0) {
		roofline = draw_roofline(p, () => list, () => chosen, choose);
		roof.append(el("figure", null, roofline.canvas, roofline.status, el("figcaption", null,
			`The roof of ${p.card}: ${p.tflops} TFLOP/s, and ${p.memory_gbs} GB/s times the FLOPs that each byte is used for. Dots are the launches at their expected rate.`)));
	}
	set(main);
	box.plan_view = { ...box.plan_view, layer: { set, choose, chosen: () => chosen, list: () => list } };
}

function draw_roofline(p, list, chosen, choose) {
	const left = 52, bottom = 30, height = 250;
	const dots = () => list().map((l, i) => ({ i, l, x: l.flops / l.moved, y: l.flops / l.time / 1e12 })).filter((d) => d.l.flops && d.l.time > 0);
	let x0, x1, y0, y1;
	const x_of = (x, v) => left + Math.log(x / x0) / Math.log(x1 / x0) * (v.width - left - 10);
	const y_of = (y) => (1 - Math.log(y / y0) / Math.log(y1 / y0)) * (height - bottom - 12) + 12;
	return figure({ label: "Roofline of the launches. Arrow keys go from launch to launch", height,
		draw(c, v) {
			const all = dots(), ridge = p.tflops * 1e12 / (p.memory_gbs * 1e9);
			x0 = Math.min(0.5, ...all.map((d) => d.x * 0.7));
			x1 = Math.max(ridge * 30, ...all.map((d) => d.x * 1.5));
			y1 = p.tflops * 1.6;
			y0 = Math.min(x0 * p.memory_gbs / 1e3, ...all.map((d) => d.y * 0.7));
			c.strokeStyle = color("line");
			c.fillStyle = color("dim");
			c.lineWidth = 1;
			c.textAlign = "center";
			for (let e = Math.ceil(Math.log10(x0)); 10 ** e <= x1; e++)
				c.fillText(short(10 ** e), x_of(10 ** e, v), height - bottom + 11);
			c.fillText("FLOPs a byte", (left + v.width) / 2, height - 6);
			c.textAlign = "right";
			for (let e = Math.ceil(Math.log10(y0)); 10 ** e <= y1; e++) {
				c.fillText(String(Number((10 ** e).toPrecision(2))), left - 6, y_of(10 ** e));
				c.strokeRect(left, y_of(10 ** e), v.width - left - 10, 0);
			}
			c.textAlign = "left";
			c.fillText("TFLOP/s", 0, 6);
			c.strokeStyle = color("text");
			c.lineWidth = 1.5;
			c.beginPath();
			c.moveTo(x_of(x0, v), y_of(x0 * p.memory_gbs / 1e3));
			c.lineTo(x_of(ridge, v), y_of(p.tflops));
			c.lineTo(x_of(x1, v), y_of(p.tflops));
			c.stroke();
			for (const d of all) {
				c.fillStyle = series(d.l.part);
				c.globalAlpha = d.i === chosen() ? 1 : 0.65;
				c.beginPath();
				c.arc(x_of(d.x, v), y_of(d.y), d.i === chosen() ? 7 : 4.5, 0, 7);
				c.fill();
				c.globalAlpha = 1;
				if (d.i === chosen()) {
					c.stroke();
					c.fillStyle = color("text");
					c.textAlign = x_of(d.x, v) > v.width - 120 ? "right" : "left";
					c.fillText(d.l.op, x_of(d.x, v) + (c.textAlign === "left" ? 11 : -11), y_of(d.y) - 10);
				}
			}
		},
		hit(x, y, v) {
			const near = dots().map((d) => [Math.hypot(x_of(d.x, v) - x, y_of(d.y) - y), d]).sort((a, b) => a[0] - b[0])[0];
			return near && near[0] < 12 ? { key: near[1].i, i: near[1].i, text: `${near[1].l.op}: ${near[1].y.toFixed(1)} TFLOP/s at ${
				near[1].x.toFixed(1)} FLOPs a byte\n${seconds(near[1].l.time)}, ${bound(p, near[1].l)}` } : null;
		},
		picked: (item) => item && choose(item.i),
		key(event) {
			const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
			if (step)
				choose((chosen() + step + list().length) % list().length);
			return Boolean(step);
		} });
}
