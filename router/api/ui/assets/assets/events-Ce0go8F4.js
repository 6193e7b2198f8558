async function*e(e){if(!e.body)return;let n=e.body.pipeThrough(new TextDecoderStream).getReader(),r=``;try{for(;;){let{done:e,value:i}=await n.read();if(e)return;let a=(r+i).replaceAll(`\r
`,`
`).split(`

`);r=a.pop()??``;for(let e of a){let n=t(e);n&&(yield n)}}}finally{await n.cancel()}}function t(e){let t=`message`,n=[];for(let r of e.split(`
`))r.startsWith(`event:`)&&(t=r.slice(6).trim()),r.startsWith(`data:`)&&n.push(r.slice(5).replace(/^ /,``));return n.length?{name:t,data:n.join(`
`)}:null}export{e as t};